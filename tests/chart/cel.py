"""What the chart's CEL says, evaluated by CEL's own C++ implementation, as an API server of Kubernetes would: a variable or an expression
that fails is a refusal (failurePolicy Fail), a condition that fails counts as an error here.

cel.py policies RENDERED.json POLICY...   these ValidatingAdmissionPolicies, over the tables below
cel.py needed RENDERED.json POLICY...     without any one of their rules a row of the tables goes wrong
cel.py conditions RENDERED.json REVIEWS   the webhooks' matchConditions, over the reviews of src/scheduler/tests/golden/webhook.jsonl
"""
import copy
import functools
import json
import sys

from cel_expr_python import cel

NAMES = ("object", "oldObject", "request", "variables")
ENVIRONMENT = cel.NewEnv(variables={name: cel.Type.DYN for name in NAMES})


@functools.lru_cache(maxsize=None)
def compiled(expression):
    return ENVIRONMENT.compile(expression)


def evaluate(expression, **data):
    """A value of Python, or the error as an exception."""
    result = compiled(expression).eval(data={name: data.get(name) for name in NAMES})
    if "ERROR" in str(result.type()):
        raise ValueError(str(result.value()))
    return result.plain_value() if hasattr(result, "plain_value") else result.value()


def plain(value):
    """CEL's values as Python's, where they are nested."""
    if hasattr(value, "plain_value"):
        return plain(value.plain_value())
    if hasattr(value, "value") and callable(value.value):
        return plain(value.value())
    if isinstance(value, dict):
        return {plain(key): plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return value


def refusals(policy, request, new, old):
    """Why a policy refuses; None where the request is none of its."""
    data = {"object": new, "oldObject": old, "request": request}
    if not all(evaluate(one["expression"], **data) for one in policy["spec"]["matchConditions"]):
        return None
    variables = {}
    for one in policy["spec"].get("variables", []):
        try:
            variables[one["name"]] = plain(evaluate(one["expression"], variables=variables, **data))
        except ValueError:
            pass  # Whoever names it fails.
    found = []
    for one in policy["spec"]["validations"]:
        try:
            holds = evaluate(one["expression"], variables=variables, **data)
        except ValueError as error:
            holds = f"{error}"
        if holds is not True:
            found.append(one["message"])
    return found


def matches(policy, resource, operation):
    """Whether a rule of its covers this."""
    for rule in policy["spec"]["matchConstraints"]["resourceRules"]:
        covered = resource in rule["resources"] or ("/" in resource and resource.split("/")[0] + "/*" in rule["resources"])
        if covered and ("*" in rule["operations"] or operation in rule["operations"]):
            return True
    return False


# The tables.

MPSGATED = "system:serviceaccount:mpsgate-system:mpsgate"
SCHEDULER = "system:serviceaccount:mpsgate-system:mpsgate-scheduler"
REMOVAL = "system:serviceaccount:mpsgate-system:mpsgate-removal"
NODE = "authentication.kubernetes.io/node-name"
POD = "authentication.kubernetes.io/pod-name"

THE_NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {
        "name": "n1", "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-01-31T12:00:00Z",
        "labels": {"kubernetes.io/hostname": "n1", "ack.node.gpu.schedule": "mps", "mpsgate.io/shared": "true",
                   "aliyun.accelerator/nvidia_count": "1"},
        "annotations": {"node.alpha.kubernetes.io/ttl": "0", "mpsgate.io/cards": "{}", "mpsgate.io/handlers": "{}"},
        "finalizers": ["example.com/wait"],
        "managedFields": [{"manager": "kubelet"}],
    },
    "spec": {"podCIDR": "10.0.0.0/24", "providerID": "p://1", "taints": [{"key": "gpu", "effect": "NoSchedule"}]},
    "status": {
        "capacity": {"cpu": "8", "aliyun.com/gpu-mem": "16", "aliyun.com/gpu-count": "1"},
        "allocatable": {"cpu": "8", "aliyun.com/gpu-mem": "16", "aliyun.com/gpu-count": "1"},
        "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "1"},
                       {"type": "GPUMemorySharingReady", "status": "True", "reason": "Ready"}],
        "addresses": [{"type": "InternalIP", "address": "10.1.1.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": {"kubeletVersion": "v1.34.1"},
        "images": [{"names": ["a"], "sizeBytes": 1}],
    },
}

THE_EVENT = {
    "apiVersion": "v1", "kind": "Event", "metadata": {"name": "web.1", "namespace": "default", "resourceVersion": "1"},
    "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": "web", "namespace": "default", "uid": "u-1"},
    "reason": "GPUMemoryRefused", "message": "m", "type": "Warning", "source": {"component": "mpsgated", "host": "n1"},
    "reportingComponent": "mpsgated", "reportingInstance": "n1", "firstTimestamp": "1", "lastTimestamp": "1", "count": 1,
}

THE_POD = {
    "apiVersion": "v1", "kind": "Pod",
    "metadata": {"name": "mpsgate-scheduler-1", "namespace": "mpsgate-system", "labels": {"app.kubernetes.io/component": "scheduler"}},
    "spec": {"containers": [{"name": "scheduler", "image": "mpsgate"}]}, "status": {"phase": "Running"},
}

THE_SLICE = {
    "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
    "metadata": {"name": "n1-mpsgate.io", "resourceVersion": "1", "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u", "controller": True}]},
    "spec": {
        "driver": "mpsgate.io", "nodeName": "n1", "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-8d4ff3a6-0000-0000-0000-000000000000", "allowMultipleAllocations": True,
                     "capacity": {"memory": {"value": "15Gi", "requestPolicy": {"default": "15Gi", "validRange": {"min": "1Mi", "step": "1Mi"}}}}}],
    },
}

ANOTHERS_DEVICE = {"driver": "nic.example.com", "pool": "n1", "device": "eth0", "networkData": {"ips": ["10.0.0.9/24"]}}
OWN_DEVICE = {"driver": "mpsgate.io", "pool": "n1", "device": "gpu-8d4ff3a6-0000-0000-0000-000000000000", "shareID": "s-1", "data": {"guarantee": "mps+watchdog", "memoryMiB": 7168},
              "conditions": [{"type": "Ready", "status": "True", "reason": "Prepared", "lastTransitionTime": "2026-01-31T12:00:00Z"}]}
THE_CLAIM = {
    "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
    "metadata": {"name": "gpu", "namespace": "default", "uid": "u-2", "resourceVersion": "1", "finalizers": ["resource.kubernetes.io/delete-protection"]},
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "shared-gpu.mpsgate.io", "capacity": {"requests": {"memory": "7Gi"}}}}]}},
    "status": {
        "allocation": {
            "devices": {"results": [{"request": "gpu", "driver": "mpsgate.io", "pool": "n1", "device": "gpu-8d4ff3a6-0000-0000-0000-000000000000",
                                     "shareID": "s-1", "consumedCapacity": {"memory": "7Gi", "clients": "1"}}]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]},
        },
        "reservedFor": [{"resource": "pods", "name": "web", "uid": "u-1"}],
        "devices": [ANOTHERS_DEVICE],
    },
}


def change(of, path, value):
    """A copy with one value set; None takes it away."""
    copied = copy.deepcopy(of)
    at = copied
    for key in path[:-1]:
        at = at[key] if isinstance(at, list) else at.setdefault(key, {})
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return copied


def request(operation="UPDATE", username=MPSGATED, **extra):
    of = {"operation": operation, "userInfo": {"username": username}}
    if extra:
        of["userInfo"]["extra"] = {NODE if key == "node" else POD: [value] for key, value in extra.items()}
    return of


def labels(key, value):
    return ("metadata", "labels", key), value


def node_rows():
    """(what, allowed, change of the own node)"""
    for key in ("mpsgate.io/shared", "mpsgate.io/guarantee", "mpsgate.io/proven", "aliyun.accelerator/nvidia_count", "aliyun.accelerator/nvidia_name", "aliyun.accelerator/nvidia_mem"):
        yield f"label {key}", True, *labels(key, "2")
    yield "own label goes", True, *labels("mpsgate.io/shared", None)
    yield "the annotation with the cards", True, ("metadata", "annotations", "mpsgate.io/cards"), "{}{}"
    yield "cards of 200 KB", True, ("metadata", "annotations", "mpsgate.io/cards"), "z" * 200_000
    yield "the cards go", True, ("metadata", "annotations", "mpsgate.io/cards"), None
    yield "the annotation with the handlers", True, ("metadata", "annotations", "mpsgate.io/handlers"), "{}{}"
    yield "the number of cards", True, ("status", "capacity", "aliyun.com/gpu-count"), "2"
    yield "the number goes", True, ("status", "capacity", "aliyun.com/gpu-count"), None
    yield "the condition", True, ("status", "conditions", 1, "status"), "False"
    yield "the condition goes", True, ("status", "conditions"), THE_NODE["status"]["conditions"][:1]
    yield "managed fields", True, ("metadata", "managedFields"), [{"manager": "mpsgated"}]
    yield "nothing", True, ("metadata", "name"), "n1"
    for key in ("ack.node.gpu.schedule", "node-restriction.kubernetes.io/x", "aliyun.accelerator/other", "mpsgate.io/active", "nos.nebuly.com/gpu-partitioning"):
        yield f"label {key}", False, *labels(key, "share")
    yield "a label goes", False, *labels("ack.node.gpu.schedule", None)
    yield "all labels go", False, ("metadata", "labels"), None
    yield "a label like the annotation of a removal", False, *labels("mpsgate.io/removal", "x")
    yield "another annotation", False, ("metadata", "annotations", "node.alpha.kubernetes.io/ttl"), "9"
    yield "its annotation in other letters", False, ("metadata", "annotations", "MPSGATE.io/cards"), "x"
    yield "all annotations go", False, ("metadata", "annotations"), None
    yield "another annotation comes", False, ("metadata", "annotations", "mpsgate.io/else"), "9"
    yield "the annotation of a removal comes", False, ("metadata", "annotations", "mpsgate.io/removal"), "true"
    yield "another annotation goes", False, ("metadata", "annotations", "node.alpha.kubernetes.io/ttl"), None
    yield "a taint", False, ("spec", "taints"), [{"key": "x", "effect": "NoExecute"}]
    yield "no taints", False, ("spec", "taints"), None
    yield "unschedulable", False, ("spec", "unschedulable"), True
    yield "an unknown field of the spec", False, ("spec", "future"), 1
    yield "no spec", False, ("spec",), None
    yield "a finalizer", False, ("metadata", "finalizers"), ["example.com/wait", "x/y"]
    yield "no finalizer", False, ("metadata", "finalizers"), None
    yield "an owner", False, ("metadata", "ownerReferences"), [{"kind": "Pod", "name": "x", "uid": "y"}]
    yield "a deletion", False, ("metadata", "deletionTimestamp"), "2026-01-31T12:00:00Z"
    yield "a generation", False, ("metadata", "generation"), 3
    yield "memory of cards", False, ("status", "capacity", "aliyun.com/gpu-mem"), "999"
    yield "cpu", False, ("status", "capacity", "cpu"), "999"
    yield "another resource", False, ("status", "capacity", "nvidia.com/gpu"), "8"
    yield "a capacity goes", False, ("status", "capacity", "cpu"), None
    yield "allocatable", False, ("status", "allocatable", "cpu"), "999"
    yield "cards that can be allocated", False, ("status", "allocatable", "aliyun.com/gpu-count"), "99"
    yield "another condition", False, ("status", "conditions", 0, "status"), "False"
    yield "another condition goes", False, ("status", "conditions"), THE_NODE["status"]["conditions"][1:]
    yield "a condition comes", False, ("status", "conditions"), THE_NODE["status"]["conditions"] + [{"type": "DiskPressure", "status": "True"}]
    yield "Ready twice", True, ("status", "conditions"), [THE_NODE["status"]["conditions"][0], *THE_NODE["status"]["conditions"]]
    yield "its condition twice", True, ("status", "conditions"), [*THE_NODE["status"]["conditions"], {"type": "GPUMemorySharingReady", "status": "False", "x": {"a": 1}}]
    yield "another Ready first", False, ("status", "conditions"), [{"type": "Ready", "status": "False"}, *THE_NODE["status"]["conditions"]]
    yield "a second Ready", False, ("status", "conditions"), THE_NODE["status"]["conditions"] + [{"type": "Ready", "status": "False"}]
    yield "no condition at all", False, ("status", "conditions"), None
    yield "an address", False, ("status", "addresses"), [{"type": "InternalIP", "address": "10.6.6.6"}]
    yield "the kubelet's port", False, ("status", "daemonEndpoints", "kubeletEndpoint", "Port"), 6666
    yield "its versions", False, ("status", "nodeInfo", "kubeletVersion"), "v1.0.0"
    yield "its images", False, ("status", "images"), []
    yield "an unknown field of the status", False, ("status", "future"), 1
    yield "no status", False, ("status",), None


def claim_rows():
    """Slices and claims, as `table` has them."""
    own, policy = request(node="n1"), "slices"
    grown = change(THE_SLICE, ("spec", "pool", "generation"), 2)
    other = change(change(change(THE_SLICE, ("spec", "nodeName"), "n2"), ("spec", "pool", "name"), "n2"), ("metadata", "name"), "n2-mpsgate.io")
    create, delete = request("CREATE", node="n1"), request("DELETE", node="n1")
    yield policy, "made", True, "resourceslices", create, THE_SLICE, None
    yield policy, "changed", True, "resourceslices", own, grown, THE_SLICE
    yield policy, "deleted", True, "resourceslices", delete, None, THE_SLICE
    for what, path, value in (
        ("of another driver", ("spec", "driver"), "gpu.example.com"),
        ("of another node", ("spec", "nodeName"), "n2"),
        ("of no node", ("spec", "nodeName"), None),
        ("of all nodes", ("spec",), {**{key: value for key, value in THE_SLICE["spec"].items() if key != "nodeName"}, "allNodes": True}),
    ):
        wrong = change(THE_SLICE, path, value)
        yield policy, f"one {what} made", False, "resourceslices", create, wrong, None
        yield policy, f"one {what} deleted", False, "resourceslices", delete, None, wrong
        yield policy, f"one {what} taken over", False, "resourceslices", own, THE_SLICE, wrong
        yield policy, f"given away as one {what}", False, "resourceslices", own, wrong, THE_SLICE
    for what, path, value in (
        ("of another node's pool", ("spec", "pool", "name"), "n2"),
        ("under another node's name", ("metadata", "name"), "n2-mpsgate.io"),
        ("under a name of its own", ("metadata", "name"), "mpsgate.io"),
    ):
        wrong = change(THE_SLICE, path, value)
        yield policy, f"one {what} made", False, "resourceslices", create, wrong, None
        yield policy, f"one {what} changed", False, "resourceslices", own, wrong, wrong
        yield policy, f"its own left-over {what} deleted", True, "resourceslices", delete, None, wrong
    long = "n" * 253
    cut = change(change(change(THE_SLICE, ("spec", "nodeName"), long), ("spec", "pool", "name"), long), ("metadata", "name"), "n" * 225 + "-0123456789abcdef-mpsgate.io")
    cut = change(cut, ("metadata", "ownerReferences", 0, "name"), long)
    yield policy, "a long node's made", True, "resourceslices", request("CREATE", node=long), cut, None
    yield policy, "a long node's under a name of its own", False, "resourceslices", request("CREATE", node=long), change(cut, ("metadata", "name"), "n2-gpu.example.com"), None
    yield policy, "another node's made", False, "resourceslices", create, other, None
    yield policy, "another node's changed", False, "resourceslices", own, change(other, ("spec", "devices"), []), other
    yield policy, "another node's deleted", False, "resourceslices", delete, None, other
    for what, token in (("without a node", {}), ("of another node", {"node": "n2"})):
        yield policy, f"made by a token {what}", False, "resourceslices", request("CREATE", **token), THE_SLICE, None
        yield policy, f"changed by a token {what}", False, "resourceslices", request(**token), grown, THE_SLICE
        yield policy, f"deleted by a token {what}", False, "resourceslices", request("DELETE", **token), None, THE_SLICE
    metadata = {"name": "n1-mpsgate.io", "uid": "u", "generation": 1, "creationTimestamp": "1", "managedFields": [{}], "ownerReferences": THE_SLICE["metadata"]["ownerReferences"]}
    yield policy, "made, with what the API server sets", True, "resourceslices", create, change(THE_SLICE, ("metadata",), metadata), None
    for what, path, value in (
        ("a finalizer", ("metadata", "finalizers"), ["a/b"]),
        ("a label", ("metadata", "labels"), {"a": "b"}),
        ("an annotation", ("metadata", "annotations"), {"a": "b" * 200_000}),
        ("no owner", ("metadata", "ownerReferences"), None),
        ("another node as owner", ("metadata", "ownerReferences", 0, "name"), "n2"),
        ("a pod as owner", ("metadata", "ownerReferences", 0, "kind"), "Pod"),
        ("a second owner", ("metadata", "ownerReferences"), [*THE_SLICE["metadata"]["ownerReferences"], {"apiVersion": "v1", "kind": "Node", "name": "n2", "uid": "u2"}]),
        ("whole cards", ("spec", "devices", 0, "allowMultipleAllocations"), None),
        ("whole cards by word", ("spec", "devices", 0, "allowMultipleAllocations"), False),
        ("more cards than there can be", ("spec", "devices"), [{**THE_SLICE["spec"]["devices"][0], "name": f"gpu-{n}"} for n in range(65)]),
        ("cards that choose their nodes", ("spec", "perDeviceNodeSelection"), True),
        ("shared counters", ("spec", "sharedCounters"), [{"name": "a", "counters": {}}]),
        ("nodes by labels beside its own", ("spec", "nodeSelector"), {"nodeSelectorTerms": [{}]}),
        ("a card of another node", ("spec", "devices", 0, "nodeName"), "n2"),
        ("a card of all nodes", ("spec", "devices", 0, "allNodes"), True),
        ("a card of nodes by labels", ("spec", "devices", 0, "nodeSelector"), {"nodeSelectorTerms": [{}]}),
        ("a card that binds to its node", ("spec", "devices", 0, "bindsToNode"), True),
        ("a card that is to be waited for", ("spec", "devices", 0, "bindingConditions"), ["x"]),
        ("a card that may fail to bind", ("spec", "devices", 0, "bindingFailureConditions"), ["x"]),
        ("a card that takes counters", ("spec", "devices", 0, "consumesCounters"), [{"counterSet": "a", "counters": {}}]),
        ("a card that takes cpu of its node", ("spec", "devices", 0, "nodeAllocatableResourceMappings"), {"cpu": {"quantity": "64"}}),
        ("a card as an older version of the API has it", ("spec", "devices"), [{"name": "gpu-0", "basic": {"allowMultipleAllocations": True}}]),
        ("cards that are not prepared", ("spec", "skipNodeOperations"), ["NodePrepareResources"]),
        ("a field that nobody knows yet", ("spec", "devices", 0, "future"), ""),
        ("its node as owner twice", ("metadata", "ownerReferences"), [{**THE_SLICE["metadata"]["ownerReferences"][0], "uid": f"u{n}"} for n in range(2)]),
        ("its node as owner by another API", ("metadata", "ownerReferences", 0, "apiVersion"), "example.com/v1"),
        ("a taint that ends pods", ("spec", "devices", 0, "taints"), [{"key": "a", "effect": "NoExecute"}]),
    ):
        wrong = change(THE_SLICE, path, value)
        yield policy, f"with {what} made", False, "resourceslices", create, wrong, None
        yield policy, f"with {what} changed", False, "resourceslices", own, change(wrong, ("spec", "pool", "generation"), 2), THE_SLICE
        yield policy, f"with {what} deleted", True, "resourceslices", delete, None, wrong
    for what, path, value in (
        ("a taint of mpsgated's", ("spec", "devices", 0, "taints"), [{"key": "mpsgate.io/trouble", "effect": "NoSchedule"}]),
        ("a younger API server's defaults", ("spec", "devices", 0, "bindsToNode"), False),
        ("no cards", ("spec", "devices"), []),
        ("64 cards", ("spec", "devices"), [{**THE_SLICE["spec"]["devices"][0], "name": f"gpu-{n}"} for n in range(64)]),
    ):
        right = change(THE_SLICE, path, value)
        yield policy, f"with {what} made", True, "resourceslices", create, right, None
        yield policy, f"with {what} changed", True, "resourceslices", own, change(right, ("spec", "pool", "generation"), 2), THE_SLICE
    dry = {**create, "dryRun": True}
    whole = change(THE_SLICE, ("spec", "devices", 0, "allowMultipleAllocations"), None)
    yield policy, "with whole cards, which is not kept", True, "resourceslices", dry, whole, None
    yield policy, "with whole cards, which is kept", False, "resourceslices", {**create, "dryRun": False}, whole, None
    others = {"labels": {"a": "b"}, "finalizers": ["a/b"], "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "u3", "controller": True}]}
    theirs = change(THE_SLICE, ("metadata",), {**THE_SLICE["metadata"], **others})
    again = change(theirs, ("metadata", "ownerReferences"), [{**others["ownerReferences"][0], "controller": None}, *THE_SLICE["metadata"]["ownerReferences"]])
    yield policy, "what somebody else has set is kept, and its node owns it again", True, "resourceslices", own, again, theirs
    yield policy, "what somebody else has set goes", True, "resourceslices", own, THE_SLICE, theirs
    twice = change(THE_SLICE, ("metadata", "ownerReferences"), [*THE_SLICE["metadata"]["ownerReferences"], {**THE_SLICE["metadata"]["ownerReferences"][0], "uid": "u4", "controller": None}])
    yield policy, "owners of before are kept", True, "resourceslices", own, change(twice, ("spec", "pool", "generation"), 2), twice
    yield policy, "its node is made anew", True, "resourceslices", own, change(THE_SLICE, ("metadata", "ownerReferences", 0, "uid"), "u5"), THE_SLICE
    yield policy, "the highest generation", True, "resourceslices", own, change(THE_SLICE, ("spec", "pool", "generation"), 2**63 - 1), THE_SLICE
    yield policy, "a node's name that is null", False, "resourceslices", own, {**THE_SLICE, "spec": {**THE_SLICE["spec"], "nodeName": None}}, THE_SLICE
    yield policy, "deleted, of which nothing is known", False, "resourceslices", delete, None, None
    nameless = change(THE_SLICE, ("spec", "nodeName"), "")
    yield policy, "one with an empty node, by a token without a node", False, "resourceslices", request("CREATE"), nameless, None
    for name in ("system:node:n1", "alice", SCHEDULER):
        yield policy, f"another node's, by {name}", None, "resourceslices", request("CREATE", username=name, node="n1"), other, None

    policy = "claims"
    written = change(THE_CLAIM, ("status", "devices"), [ANOTHERS_DEVICE, OWN_DEVICE])
    unready = copy.deepcopy(OWN_DEVICE)
    unready["conditions"][0]["status"] = "False"
    status = "resourceclaims/status"
    yield policy, "its device comes", True, status, own, change(written, ("metadata", "managedFields"), [{}]), THE_CLAIM
    yield policy, "its device changes", True, status, own, change(written, ("status", "devices", 1), unready), written
    yield policy, "its device goes", True, status, own, THE_CLAIM, written
    first = change(THE_CLAIM, ("status", "devices"), None)
    yield policy, "the first device of any", True, status, own, change(first, ("status", "devices"), [OWN_DEVICE]), first
    for what, path, value in (
        ("another driver's device changes", ("status", "devices", 0, "networkData"), {"ips": ["10.0.0.1/24"]}),
        ("another driver's device goes", ("status", "devices"), [OWN_DEVICE]),
        ("another driver's device comes", ("status", "devices"), [ANOTHERS_DEVICE, OWN_DEVICE, {**ANOTHERS_DEVICE, "device": "eth1"}]),
        ("addresses for its own device", ("status", "devices", 1, "networkData"), {"ips": ["10.0.0.1/8"]}),
        ("its device in another node's pool", ("status", "devices", 1, "pool"), "n2"),
        ("another card", ("status", "allocation", "devices", "results", 0, "device"), "gpu-x"),
        ("more memory", ("status", "allocation", "devices", "results", 0, "consumedCapacity", "memory"), "15Gi"),
        ("another node", ("status", "allocation", "nodeSelector", "nodeSelectorTerms", 0, "matchFields", 0, "values"), ["n2"]),
        ("the allocation goes", ("status", "allocation"), None),
        ("another pod", ("status", "reservedFor", 0, "uid"), "u-9"),
        ("nobody's any more", ("status", "reservedFor"), None),
        ("all of it goes", ("status",), {}),
        ("what is asked", ("spec", "devices", "requests", 0, "exactly", "capacity", "requests", "memory"), "15Gi"),
        ("a label", ("metadata", "labels"), {"a": "b"}),
        ("the finalizer goes", ("metadata", "finalizers"), []),
    ):
        yield policy, what, False, status, own, change(written, path, value), written
    at = ("status", "allocation", "nodeSelector", "nodeSelectorTerms")
    for what, path, value in (
        ("of another node", (*at, 0, "matchFields", 0, "values"), ["n2"]),
        ("of two nodes", (*at, 0, "matchFields", 0, "values"), ["n1", "n2"]),
        ("of all nodes but this", (*at, 0, "matchFields", 0, "operator"), "NotIn"),
        ("of nodes by another field", (*at, 0, "matchFields", 0, "key"), "metadata.namespace"),
        ("of nodes by their labels", at, [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]}]),
        ("of this node or any", at, [*THE_CLAIM["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"], {}]),
        ("of all nodes", ("status", "allocation", "nodeSelector"), None),
        ("that nothing was given to", ("status", "allocation"), None),
        ("without a status", ("status",), None),
    ):
        then = change(THE_CLAIM, path, value)
        devices = [*then.get("status", {}).get("devices", []), OWN_DEVICE]
        yield policy, f"a claim {what}", False, status, own, change(then, ("status", "devices"), devices), then
    narrower = change(THE_CLAIM, (*at, 0, "matchExpressions"), [{"key": "a", "operator": "Exists"}])
    yield policy, "a claim of this node, where it has a label", True, status, own, change(narrower, ("status", "devices"), [ANOTHERS_DEVICE, OWN_DEVICE]), narrower
    yield policy, "by a token without a node", False, status, request(), written, THE_CLAIM
    yield policy, "by a token of another node", False, status, request(node="n2"), written, THE_CLAIM
    yield policy, "made", False, "resourceclaims", create, THE_CLAIM, None
    yield policy, "deleted", False, "resourceclaims", delete, None, THE_CLAIM
    for name in ("system:kube-scheduler", "alice", SCHEDULER):
        yield policy, f"given another card by {name}", None, status, request(username=name, node="n2"), change(written, ("status", "allocation"), None), written


def table():
    """(policy, what, allowed, resource, request, object, old object)"""
    own = request(node="n1")
    bare = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "spec": {}, "status": {}}
    first = {"metadata": {"name": "n1", "labels": {"mpsgate.io/shared": "true"}, "annotations": {"mpsgate.io/cards": "{}"}},
             "spec": {}, "status": {"capacity": {"aliyun.com/gpu-count": "1"},
                                    "conditions": [{"type": "GPUMemorySharingReady", "status": "True"}]}}
    for resource in ("nodes", "nodes/status"):
        for what, allowed, path, value in node_rows():
            yield "nodes", what, allowed, resource, own, change(THE_NODE, path, value), THE_NODE
        yield "nodes", "all at once, where nothing was", True, resource, own, first, bare
        yield "nodes", "where there is no spec", True, resource, own, change(change(THE_NODE, ("spec",), None), ("metadata", "annotations", "mpsgate.io/cards"), "q"), change(THE_NODE, ("spec",), None)
        yield "nodes", "all of it goes", True, resource, own, bare, first
        yield "nodes", "another node", False, resource, request(node="n2"), change(THE_NODE, ("metadata", "annotations", "mpsgate.io/cards"), "x"), THE_NODE
        yield "nodes", "another node, nothing changed", False, resource, request(node="n2"), THE_NODE, THE_NODE
        yield "nodes", "a token without a node", False, resource, request(), THE_NODE, THE_NODE
        yield "nodes", "a token of two nodes", False, resource, {"operation": "UPDATE", "userInfo": {"username": MPSGATED, "extra": {NODE: ["n1", "n2"]}}}, THE_NODE, THE_NODE
        yield "nodes", "a token with nothing beside its name", False, resource, {"operation": "UPDATE", "userInfo": {"username": MPSGATED, "extra": {}}}, THE_NODE, THE_NODE
        yield "nodes", "a token of a node without a name", False, resource, {"operation": "UPDATE", "userInfo": {"username": MPSGATED, "extra": {NODE: [""]}}}, change(THE_NODE, ("metadata", "name"), ""), THE_NODE
        yield "nodes", "a token that says something else", False, resource, {"operation": "UPDATE", "userInfo": {"username": MPSGATED, "extra": {"example.com/node-name": ["n1"]}}}, THE_NODE, THE_NODE
        yield "nodes", "another account", None, resource, request(username="system:node:n2"), change(THE_NODE, ("spec", "unschedulable"), True), THE_NODE
        yield "nodes", "the same name in another namespace", None, resource, request(username="system:serviceaccount:tenant:mpsgate"), THE_NODE, THE_NODE
        yield "nodes", "the account of a removal", None, resource, request(username=REMOVAL, node="n1"), change(THE_NODE, ("spec", "taints"), []), THE_NODE
        yield "nodes", "the same name in other letters", None, resource, request(username=MPSGATED.upper(), node="n1"), change(THE_NODE, ("spec", "taints"), []), THE_NODE
        yield "nodes", "nobody", None, resource, {"operation": "UPDATE", "userInfo": {}}, THE_NODE, THE_NODE
    yield "nodes", "it is deleted", False, "nodes", request("DELETE", node="n1"), None, THE_NODE
    yield "nodes", "one is made", False, "nodes", request("CREATE", node="n1"), THE_NODE, None
    yield "nodes", "the kubelet is asked through it", False, "nodes/proxy", request("CONNECT", node="n1"), {"path": "/run"}, None

    create = request("CREATE", node="n1")
    on_node = {"kind": "Node", "name": "n1", "uid": "n1"}
    for what, allowed, path, value in (
        ("on a pod", True, ("count",), 1),
        ("on the own node", True, ("involvedObject",), on_node),
        ("on another node", False, ("involvedObject",), {**on_node, "name": "n2"}),
        ("on a pod of anywhere, for any reason", True, ("reason",), "FailedMount"),
        ("on a Secret", False, ("involvedObject", "kind"), "Secret"),
        ("on nothing", False, ("involvedObject",), {}),
        ("from another node", False, ("source", "host"), "n2"),
        ("from nowhere", False, ("source", "host"), None),
        ("without a source", False, ("source",), None),
        ("as the kubelet", False, ("source", "component"), "kubelet"),
        ("reported as the kubelet", False, ("reportingComponent",), "kubelet"),
        ("reported from another node", False, ("reportingInstance",), "n2"),
        ("as an API server completes it", True, ("eventTime",), None),
        ("with what the API server sets", True, ("metadata",), {"name": "web.1", "generateName": "web.", "namespace": "default", "uid": "u", "creationTimestamp": "1", "managedFields": [{}]}),
        ("with a finalizer", False, ("metadata", "finalizers"), ["a/b"]),
        ("with an owner", False, ("metadata", "ownerReferences"), [{"kind": "Pod", "name": "web", "uid": "u-1"}]),
        ("with a label", False, ("metadata", "labels"), {"a": "b"}),
        ("with an annotation", False, ("metadata", "annotations"), {"a": "b" * 200_000}),
        ("with something related", False, ("related",), {"kind": "Node", "name": "n2"}),
        ("as a series", False, ("series",), {"count": 5}),
        ("with an action", False, ("action",), "x" * 1_000_000),
        ("on a part of a pod", False, ("involvedObject", "fieldPath"), "x" * 1_000_000),
        ("on a long name", False, ("involvedObject", "name"), "x" * 254),
        ("on the longest name", True, ("involvedObject", "name"), "x" * 253),
        ("with the longest message", True, ("message",), "\u00fc" * 1024),
        ("with a longer message", False, ("message",), "m" * 1025),
        ("with a message of 1 MB", False, ("message",), "m" * 1_000_000),
        ("without a message", False, ("message",), None),
        ("with a long reason", False, ("reason",), "r" * 129),
        ("without a reason", False, ("reason",), None),
        ("of another type", False, ("type",), "x" * 1_000_000),
    ):
        made = {**THE_EVENT, "eventTime": None} if path == ("eventTime",) else change(THE_EVENT, path, value)
        yield "events", f"made {what}", allowed, "events", create, made, None
    yield "events", "made by a token without a node", False, "events", request("CREATE"), THE_EVENT, None
    yield "events", "made by a token of another node", False, "events", request("CREATE", node="n2"), THE_EVENT, None
    yield "events", "made by another account", None, "events", request("CREATE", username="alice"), THE_EVENT, None
    counted = {**copy.deepcopy(THE_EVENT), "count": 2, "lastTimestamp": "2", "message": "n", "type": "Normal"}
    yield "events", "counted on", True, "events", own, change(counted, ("metadata", "managedFields"), [{}]), THE_EVENT
    foreign = change(THE_EVENT, ("source",), {"component": "kubelet", "host": "n1"})
    yield "events", "the kubelet's changed", False, "events", own, change(foreign, ("message",), "x"), foreign
    yield "events", "the kubelet's taken over", False, "events", own, counted, foreign
    other = change(change(THE_EVENT, ("source", "host"), "n2"), ("reportingInstance",), "n2")
    yield "events", "another node's taken over", False, "events", own, counted, other
    for path, value in ((("reason",), "x"), (("involvedObject", "name"), "other"), (("related",), {"kind": "Pod"}), (("metadata", "finalizers"), ["x/y"]), (("metadata", "labels"), {"a": "b"})):
        yield "events", f"{path} changed", False, "events", own, change(counted, path, value), THE_EVENT
    yield "events", "counted on with 1 MB", False, "events", own, change(counted, ("message",), "m" * 1_000_000), THE_EVENT
    held = change(THE_EVENT, ("metadata", "finalizers"), ["somebody/else"])
    yield "events", "counted on where somebody else holds it", True, "events", own, change(counted, ("metadata", "finalizers"), ["somebody/else"]), held
    yield "events", "deleted", False, "events", request("DELETE", node="n1"), None, THE_EVENT

    pod = request(username=SCHEDULER, pod="mpsgate-scheduler-1", node="n1")
    active = change(THE_POD, ("metadata", "labels", "mpsgate.io/active"), "true")
    for what, allowed, now, then in (
        ("its label comes", True, active, THE_POD),
        ("its label goes", True, THE_POD, active),
        ("another label", False, change(THE_POD, ("metadata", "labels", "app.kubernetes.io/component"), "x"), THE_POD),
        ("its image", False, change(THE_POD, ("spec", "containers", 0, "image"), "evil"), THE_POD),
        ("its label and its image", False, change(active, ("spec", "containers", 0, "image"), "evil"), THE_POD),
        ("an annotation", False, change(THE_POD, ("metadata", "annotations"), {"a": "b"}), THE_POD),
        ("an owner", False, change(THE_POD, ("metadata", "ownerReferences"), [{}]), THE_POD),
        ("its status", False, change(THE_POD, ("status", "phase"), "Failed"), THE_POD),
    ):
        yield "scheduler", what, allowed, "pods", pod, now, then
    holder = change(THE_POD, ("metadata", "name"), "mpsgate-holder-1")
    yield "scheduler", "another pod's label", False, "pods", pod, change(holder, ("metadata", "labels", "mpsgate.io/active"), "true"), holder
    elsewhere = change(THE_POD, ("metadata", "namespace"), "tenant")
    yield "scheduler", "a pod of that name elsewhere", False, "pods", pod, change(elsewhere, ("metadata", "labels", "mpsgate.io/active"), "true"), elsewhere
    yield "scheduler", "a token without a pod", False, "pods", request(username=SCHEDULER), active, THE_POD
    yield "scheduler", "it is deleted", False, "pods", request("DELETE", username=SCHEDULER, pod="mpsgate-scheduler-1"), None, THE_POD
    yield "scheduler", "one is made", False, "pods", request("CREATE", username=SCHEDULER, pod="mpsgate-scheduler-1"), THE_POD, None
    yield "scheduler", "another account", None, "pods", request(username=MPSGATED, pod="x"), active, THE_POD
    yield from claim_rows()
    yield from removal_rows()


def removal_rows():
    """The account that tells nodes to give their cards back, as `table` has them."""
    policy, own, key = "removal", request(username=REMOVAL, node="n9"), ("metadata", "annotations", "mpsgate.io/removal")
    told = change(THE_NODE, key, "true")
    bare = change(THE_NODE, ("metadata", "annotations"), None)
    for what, new, old in (
        ("a node is told", told, THE_NODE),
        ("by the first annotation of any", change(bare, ("metadata", "annotations"), {key[-1]: "true"}), bare),
        ("and told again", change(told, ("metadata", "managedFields"), [{}]), told),
        ("a node goes on", THE_NODE, told),
        ("with no annotation left", bare, change(bare, ("metadata", "annotations"), {key[-1]: "true"})),
    ):
        yield policy, what, True, "nodes", own, new, old
    yield policy, "told something else", False, "nodes", own, change(THE_NODE, key, "x" * 200_000), THE_NODE
    yield policy, "told nothing", False, "nodes", own, change(THE_NODE, key, ""), THE_NODE
    for resource in ("nodes", "nodes/status"):
        for what, _, path, value in node_rows():
            if path not in (key, ("metadata", "managedFields"), ("metadata", "name")):
                yield policy, what, False, resource, own, change(THE_NODE, path, value), THE_NODE
                yield policy, f"told, and {what}", False, resource, own, change(told, path, value), THE_NODE
    yield policy, "renamed", False, "nodes", own, change(THE_NODE, ("metadata", "name"), "n2"), THE_NODE
    yield policy, "deleted", False, "nodes", request("DELETE", username=REMOVAL), None, THE_NODE
    yield policy, "made", False, "nodes", request("CREATE", username=REMOVAL), THE_NODE, None
    yield policy, "the kubelet is asked through it", False, "nodes/proxy", request("CONNECT", username=REMOVAL), {"path": "/run"}, None
    for name in (MPSGATED, "alice", "system:serviceaccount:tenant:mpsgate-removal"):
        yield policy, f"a taint by {name}", None, "nodes", request(username=name), change(THE_NODE, ("spec", "taints"), []), THE_NODE


def read(file):
    with open(file, encoding="utf-8") as stream:
        return json.load(stream)


def judged(rendered, names):
    """Of each row about these policies whether it is as wanted, and what was seen."""
    found = {one["metadata"]["name"]: one for one in rendered if one["kind"] == "ValidatingAdmissionPolicy"}
    bound = {one["spec"]["policyName"] for one in rendered if one["kind"] == "ValidatingAdmissionPolicyBinding" and one["spec"]["validationActions"] == ["Deny"]}
    unknown = set(names) - {row[0] for row in table()}
    if unknown:
        raise SystemExit(f"no row is about {', '.join(sorted(unknown))}")
    for name, what, allowed, resource, request, new, old in table():
        if name not in names:
            continue
        policy = found.get(f"mpsgate-{name}")
        if policy is None or policy["metadata"]["name"] not in bound or policy["spec"]["failurePolicy"] != "Fail":
            seen = "no such policy in force"
        elif not matches(policy, resource, request["operation"]):
            seen = "no rule matches"
        else:
            why = refusals(policy, request, new, old)
            seen = None if why is None else not why
        yield seen == allowed, f"{name}, {resource}: {what}: {seen}, wanted {allowed}"


def policies(file, names):
    rows = list(judged(read(file), names))
    bad = [text for good, text in rows if not good]
    print(*bad, sep="\n", end="\n" if bad else "", file=sys.stderr)
    print(f"{len(rows)} requests, {len(bad)} bad")
    return 1 if bad or not rows else 0


def needed(file, names):
    rendered, idle, rules = read(file), [], 0
    for name in names:
        policy = next(one for one in rendered if one["kind"] == "ValidatingAdmissionPolicy" and one["metadata"]["name"] == f"mpsgate-{name}")
        whole = policy["spec"]["validations"]
        for at, rule in enumerate(whole):
            rules += 1
            policy["spec"]["validations"] = whole[:at] + whole[at + 1:]
            if all(good for good, _ in judged(rendered, [name])):
                idle.append(f"{name}: no row needs the rule: {rule['message']}")
        policy["spec"]["validations"] = whole
    print(*idle, sep="\n", end="\n" if idle else "", file=sys.stderr)
    print(f"{rules} rules, {len(idle)} that no row needs")
    return 1 if idle or not rules else 0


def conditions(file, reviews):
    rendered = read(file)
    webhooks = [one for conf in rendered if conf["kind"].endswith("WebhookConfiguration") for one in conf["webhooks"]]
    resources = {"Deployment": "deployments", "StatefulSet": "statefulsets", "DaemonSet": "daemonsets", "ReplicaSet": "replicasets", "Job": "jobs", "CronJob": "cronjobs"}
    bad = asked = left = 0
    with open(reviews, encoding="utf-8") as stream:
        lines = [json.loads(line) for line in stream]
    for line in lines:
        request = line["review"]["request"]
        resource = {**resources, "Pod": "pods"}.get(request["kind"]["kind"], "others")
        resource += "/" + request["subResource"] if request["subResource"] else ""
        asks = {"/mpsgate/validate": False, "/mpsgate/mutate": False}
        for one in webhooks:
            if not any(resource in rule["resources"] and request["operation"] in rule["operations"] for rule in one["rules"]):
                continue
            data = {"object": request["object"], "oldObject": request["oldObject"], "request": request}
            values = [evaluate(condition["expression"], **data) for condition in one["matchConditions"]]
            asks[one["clientConfig"]["service"]["path"]] |= all(value is True for value in values)
        for path, has_word in (("/mpsgate/validate", line["evaluated"]), ("/mpsgate/mutate", line["changed"])):
            asked += asks[path]
            left += not asks[path]
            if has_word and not asks[path]:
                bad += 1
                print(f"{line['name']}: {path} would say something, and is not asked", file=sys.stderr)
        ordinary = line["name"] in ("no GPU memory", "somebody else's nonsense", "a pod's label changes", "an annotation beside the placement")
        if ordinary and any(asks.values()):
            bad += 1
            print(f"{line['name']}: the webhook is asked for nothing", file=sys.stderr)
    print(f"{len(lines)} reviews: asked {asked}, left alone {left}, {bad} bad")
    return 1 if bad or not asked or not left else 0


if sys.argv[1] == "conditions":
    sys.exit(conditions(sys.argv[2], sys.argv[3]))
sys.exit({"policies": policies, "needed": needed}[sys.argv[1]](sys.argv[2], sys.argv[3:]))
