#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
use super::*;

/// Of a real Slurm 22.05, shortened behind the resources.
fn answer(id: u32, name: &str, resources: &str, comment: &str) -> String {
    format!(
        "JobId={id} JobName={name} UserId=alice(1001) GroupId=alice(1001) JobState=RUNNING Reason=None \
         Requeue=1 Restarts=0 BatchFlag=1 NodeList=node1 BatchHost=node1 NumNodes=1 NumCPUs=1 \
         TRES=cpu=1,node=1,billing=1 Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=* {resources} MinCPUsNode=1 \
         MinMemoryNode=0 Command=(null) WorkDir=/home/alice Comment={comment} TresPerNode=gres:shard:7 \n"
    )
}

const SEVEN: &str = "JOB_GRES=shard:7   Nodes=node1 CPU_IDs=0 Mem=0 GRES=shard:7(IDX:1)";

fn read(text: &str) -> Result<Option<Given>, String> {
    given(text, 7, "node1").map_err(|refusal| {
        assert_eq!(refusal.code, Code::Unconfirmed);
        refusal.sentence
    })
}

fn of(gres: Gres, count: u64, devices: &[u32]) -> Given {
    Given { gres, count, devices: devices.to_vec() }
}

#[test]
fn a_jobs_resources_on_this_node() {
    for (resources, expected) in [
        (SEVEN, Some(of(Gres::Shard, 7, &[1]))),
        (
            "JOB_GRES=gpu:1 Nodes=node1 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0)",
            Some(of(Gres::Gpu, 1, &[0])),
        ),
        (
            "JOB_GRES=gpu:a100:3 Nodes=node1 CPU_IDs=0 Mem=0 GRES=gpu:a100:3(IDX:0-1,3)",
            Some(of(Gres::Gpu, 3, &[0, 1, 3])),
        ),
        (
            "JOB_GRES=mps:50 Nodes=node1 CPU_IDs=0 Mem=0 GRES=mps:50(IDX:0)",
            Some(of(Gres::Mps, 50, &[0])),
        ),
        (
            "JOB_GRES=license:1,shard:7 Nodes=node1 CPU_IDs=0-3 Mem=0 GRES=license:1,shard:7(0/15,7/15)",
            Some(of(Gres::Shard, 7, &[1])),
        ),
        ("JOB_GRES=(null) Nodes=node1 CPU_IDs=0 Mem=0 GRES=", None),
        ("JOB_GRES=license:1 Nodes=node1 CPU_IDs=0 Mem=0 GRES=license:1", None),
        ("JOB_GRES=shard:0 Nodes=node1 CPU_IDs=0 Mem=0 GRES=shard:0", None),
        // Several nodes.
        (
            "JOB_GRES=shard:9 Nodes=node[2-3] CPU_IDs=0 Mem=0 GRES=shard:2(IDX:0) Nodes=node1 CPU_IDs=0 Mem=0 \
             GRES=shard:5(IDX:1)",
            Some(of(Gres::Shard, 5, &[1])),
        ),
        // One list: whatever the node is called.
        (
            "JOB_GRES=shard:2 Nodes=gpu[7-9] CPU_IDs=0 Mem=0 GRES=shard:1(IDX:0)",
            Some(of(Gres::Shard, 1, &[0])),
        ),
    ] {
        assert_eq!(read(&answer(7, "train", resources, "")).unwrap(), expected, "{resources}");
    }
}

#[test]
fn what_cannot_be_read_is_refused() {
    for resources in [
        "",
        "JOB_GRES=shard:7",
        "JOB_GRES=shard:7 Nodes=node1 GRES=shard:7",
        "JOB_GRES=shard:7 Nodes=node1 GRES=shard:x(IDX:0)",
        "JOB_GRES=shard:7 Nodes=node1 GRES=shard:7(IDX:0",
        "JOB_GRES=shard:7 Nodes=node1 GRES=shard:7(IDX:3-0)",
        "JOB_GRES=shard:7 Nodes=node1 GRES=shard:7(IDX:0-4294967295)",
        "JOB_GRES=shard:7 Nodes=node1 GRES=shard:7(0/15,0/15)",
        "JOB_GRES=shard:7 Nodes=node1 GRES=gpu:1(IDX:0),shard:7(IDX:0)",
        "JOB_GRES=shard:7 Nodes=node2 GRES=shard:3(IDX:0) Nodes=node3 GRES=shard:4(IDX:0)",
    ] {
        read(&answer(7, "train", resources, "")).unwrap_err();
    }
    read("").unwrap_err();
    read(&answer(8, "train", SEVEN, "")).unwrap_err();
}

#[test]
fn what_its_owner_writes_gives_nothing() {
    let none = "JOB_GRES=(null) Nodes=node1 CPU_IDs=0 Mem=0 GRES=";
    let fake = "x Socks/Node=* JOB_GRES=shard:15 Nodes=node1 GRES=shard:15(IDX:0) MinCPUsNode=1";
    for text in [
        answer(7, fake, none, ""),
        answer(7, fake, SEVEN, ""),
        answer(7, "x", none, fake),
        answer(7, "x JOB_GRES=shard:15 Nodes=node1 GRES=shard:15(IDX:0)", none, ""),
        answer(7, &format!("x\nJobId=7 {fake}"), none, ""),
        answer(7, "x", none, &format!("x\nJobId=7 {fake}")),
        // Where Slurm did not say it itself.
        answer(7, "x JOB_GRES=shard:15 Nodes=node1 GRES=shard:15(IDX:0)", "", ""),
        answer(7, "x", "", "JOB_GRES=shard:15 Nodes=node1 GRES=shard:15(IDX:0)"),
        // Another job of the same array.
        format!(
            "{}{}",
            answer(8, &format!("x\nJobId=7 {fake}"), none, ""),
            answer(7, "x", none, "")
        ),
    ] {
        read(&text).unwrap_err();
    }
    // A field's name that stands between no others is a text.
    let text = answer(7, "GRES=shard:15(IDX:0)", SEVEN, "Nodes=node1 GRES=shard:15(IDX:0)");
    assert_eq!(read(&text).unwrap(), Some(of(Gres::Shard, 7, &[1])));
    // All jobs of an array answer to its own number.
    let text = format!("{}{}", answer(8, "x", none, ""), answer(7, "x", SEVEN, ""));
    assert_eq!(read(&text).unwrap(), Some(of(Gres::Shard, 7, &[1])));
}

#[test]
fn a_hostlist_names_its_nodes() {
    for (list, node, named) in [
        ("node1", "node1", true),
        ("node1", "node11", false),
        ("a,node1", "node1", true),
        ("node[1-3]", "node2", true),
        ("node[1-3]", "node02", false),
        ("node[01-13]", "node02", true),
        ("node[01-13]", "node2", false),
        ("node[1-13]", "node10", true),
        ("node[1,5-6]", "node5", true),
        ("node[1,5-6]", "node4", false),
        ("a,node[1,5-6]-ib,b", "node6-ib", true),
        ("node[x-y]", "node1", false),
        ("node[1", "node1", false),
        ("node[1-3]", "node", false),
    ] {
        assert_eq!(has_node(list, node), named, "{list} {node}");
    }
}

const SLURMD: &str = "\
slurmd-node1: Gres Name=shard Type=(null) Count=15 Index=0 ID=1918986455 File=/dev/nvidia0 (null)
slurmd-node1: Gres Name=gpu Type=(null) Count=1 Index=0 ID=7696487 File=/dev/nvidia0 (null)
slurmd-node1: Gres Name=mps Type=a100 Count=200 Index=1 ID=1918986455 File=/dev/nvidia1 Links=(null)
slurmd-node1: Gres Name=license Type=(null) Count=15 Index=0 ID=1 (null)
slurmd-node1: Gres Name=shard Type=(null) Count=x Index=0 ID=1918986455 File=/dev/nvidia0 (null)
slurmd: fatal: nothing
";

fn device_of(gres: Gres, index: u32, count: u64, minor: u32) -> Device {
    Device { gres, index, count, minor }
}

#[test]
fn slurmd_tells_of_cards() {
    assert_eq!(
        devices(SLURMD),
        [
            device_of(Gres::Shard, 0, 15, 0),
            device_of(Gres::Gpu, 0, 1, 0),
            device_of(Gres::Mps, 0, 200, 1),
        ]
    );
}

#[test]
fn shards_are_memory_mps_is_a_share_and_a_gpu_is_all_of_it() {
    let devices = devices(SLURMD);
    let asked = |given: Given| {
        let memory_of = |minor| (minor < 2).then_some(Mib(15_000));
        ask(&given, &devices, memory_of, Mib(1024))
    };
    let right = |minor, mib, percent: Option<u8>| Asked {
        minor,
        memory: Mib(mib),
        compute: percent.map(ComputeShare),
    };
    assert_eq!(asked(of(Gres::Shard, 7, &[0])).unwrap(), right(0, 7168, None));
    assert_eq!(asked(of(Gres::Gpu, 1, &[0])).unwrap(), right(0, 15_000, None));
    assert_eq!(asked(of(Gres::Mps, 50, &[0])).unwrap(), right(1, 3750, Some(25)));
    assert_eq!(asked(of(Gres::Mps, 1, &[0])).unwrap(), right(1, 75, Some(1)));
    assert_eq!(asked(of(Gres::Mps, u64::MAX, &[0])).unwrap().compute, Some(ComputeShare(100)));
    assert_eq!(asked(of(Gres::Gpu, 2, &[0, 1])).unwrap_err().code, Code::MultiCard);
    for unknown in [of(Gres::Shard, 7, &[1]), of(Gres::Shard, 7, &[9])] {
        assert_eq!(asked(unknown).unwrap_err().code, Code::Unconfirmed);
    }
    let refused = ask(&of(Gres::Shard, 7, &[0]), &devices, |_| None, Mib(1024)).unwrap_err();
    assert!(refused.sentence.contains("/dev/nvidia0, which mpsgate does not manage"));
}

#[test]
fn counts_that_differ_are_named() {
    let shards = |count, minor| device_of(Gres::Shard, 0, count, minor);
    let cards = [(0, Mib(15_360)), (1, Mib(15_360))];
    let said = |devices: &[Device]| differences(devices, &cards, Mib(1024));
    assert_eq!(said(&[shards(15, 0), shards(15, 1)]), Vec::<String>::new());
    assert_eq!(
        said(&[shards(20, 0), shards(10, 1), shards(3, 2), device_of(Gres::Gpu, 2, 1, 3)]),
        [
            "Slurm has 20 shards of 1 GiB for /dev/nvidia0, which has 15 GiB to grant: jobs beyond that are \
             refused; Count=15 in gres.conf, and the sum in slurm.conf",
            "Slurm has 10 shards of 1 GiB for /dev/nvidia1, which has 15 GiB to grant: 5 GiB are never given to \
             a job; Count=15 in gres.conf, and the sum in slurm.conf",
            "Slurm shares /dev/nvidia2, which mpsgate does not manage: its jobs get no GPU memory there",
        ]
    );
    assert_eq!(
        said(&[shards(15, 0)]),
        ["Slurm does not know /dev/nvidia1: gres.conf has no File= of it"]
    );
}
