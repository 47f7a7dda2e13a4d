"""validate.py KUBERNETES-VERSION FILE...: every document of the files against the schemas of that version, strictly.

What Kubernetes itself does not know (a PodMonitor, what cert-manager reads) is passed over by name, never silently.
"""
import sys

import kubernetes_validate as schemas
import yaml

FOREIGN = {"Certificate", "Issuer", "PodMonitor"}


def main() -> int:
    version, files = sys.argv[1], sys.argv[2:]
    bad = seen = 0
    for file in files:
        with open(file, encoding="utf-8") as stream:
            for document in yaml.load_all(stream, yaml.CSafeLoader):
                if document is None:
                    continue
                seen += 1
                name = f"{document['kind']} {document['metadata']['name']}"
                if document["kind"] in FOREIGN:
                    print(f"{version} {name}: not Kubernetes' own, not checked")
                    continue
                try:
                    schemas.validate(document, version, strict=True)
                except (schemas.ValidationError, schemas.SchemaNotFoundError) as error:
                    bad += 1
                    print(f"{file}: {version} {name}: {getattr(error, 'message', error)}", file=sys.stderr)
    print(f"{version}: {seen} documents, {bad} bad")
    return 1 if bad or not seen else 0


sys.exit(main())
