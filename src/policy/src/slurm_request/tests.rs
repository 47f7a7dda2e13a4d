#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
use mpsgate_model::{ComputeShare, Mib};

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

fn told(text: &str, job: &Named) -> Result<Told, String> {
    given(text, job, "node1").map_err(|refusal| {
        assert_eq!(refusal.code, Code::Unconfirmed);
        refusal.sentence
    })
}

fn read(text: &str) -> Result<Option<Given>, String> {
    match told(text, &Named::Id(7))? {
        Told::Job { id, given } => {
            assert_eq!(id, 7);
            Ok(given)
        }
        Told::Several(alone) => Err(format!("asked again: {alone}")),
    }
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
}

#[test]
fn a_line_break_in_what_its_owner_writes_gives_nothing() {
    let none = "JOB_GRES=(null) Nodes=node1 CPU_IDs=0 Mem=0 GRES=";
    let fake = "x Socks/Node=* JOB_GRES=shard:15 Nodes=node1 GRES=shard:15(IDX:0) MinCPUsNode=1";
    for name in [
        // The first line is whole, and the owner's (a real 22.05 prints it so).
        format!("{fake}\nrest"),
        format!("{fake}\n"),
        format!("{fake}\n\nrest"),
        format!("{fake}\nJobId=8 JobName=y"),
        format!("x\nJobId=7 JobName={fake}\nrest"),
        format!("x\nJobId=7 ArrayJobId=7 ArrayTaskId=3 JobName={fake}\nrest"),
        format!("{fake}\nJobId=8 HetJobId=7 HetJobOffset=1 JobName=y"),
    ] {
        read(&answer(7, &name, none, "")).unwrap_err();
        read(&answer(7, &name, SEVEN, "")).unwrap_err();
        read(&answer(7, "x", none, &name)).unwrap_err();
    }
    let said = read(&answer(7, "x\ny", SEVEN, "")).unwrap_err();
    assert!(said.ends_with("a name, comment or path of the job may have a line break"), "{said}");
}

#[test]
fn a_job_that_is_told_of_with_others_is_asked_for_alone() {
    let array = |id: u32, task: u32| {
        answer(id, "x", SEVEN, "")
            .replace(" JobName", &format!(" ArrayJobId=7 ArrayTaskId={task} JobName"))
    };
    let parts = |id: u32, part: u32| {
        answer(id, "x", SEVEN, "")
            .replace(" JobName", &format!(" HetJobId=7 HetJobOffset={part} JobName"))
    };
    let seven = Named::Id(7);
    let asked = |text: String| told(&text, &seven);
    assert_eq!(asked(array(7, 3) + &array(8, 1)), Ok(Told::Several("7_3".to_owned())));
    assert_eq!(asked(array(8, 1) + &array(7, 3)), Ok(Told::Several("7_3".to_owned())));
    assert_eq!(asked(parts(7, 0) + &parts(8, 1)), Ok(Told::Several("7+0".to_owned())));
    let job = Told::Job { id: 7, given: Some(of(Gres::Shard, 7, &[1])) };
    for alone in [array(7, 3), parts(7, 0)] {
        assert_eq!(asked(alone).as_ref(), Ok(&job));
    }
    // Another job than the one that was asked for.
    asked(array(8, 1)).unwrap_err();
    asked(array(8, 1) + &array(9, 2)).unwrap_err();
    asked(answer(7, "x", SEVEN, "") + &answer(8, "x", SEVEN, "")).unwrap_err();
}

/// As 25.11 and newer print it.
fn with_sluid(text: &str, sluid: &str) -> String {
    text.replacen(" UserId=", &format!(" SLUID={sluid} UserId="), 1)
}

#[test]
fn a_job_is_found_by_its_sluid_and_by_no_other_ones() {
    let own = "s4J8QZ0T7M2R9C";
    let named = Named::Sluid(Sluid::parse(own).unwrap());
    let asked = |text: &str| told(text, &named);
    let plain = answer(4711, "train", SEVEN, "");
    let job = Told::Job { id: 4711, given: Some(of(Gres::Shard, 7, &[1])) };
    assert_eq!(asked(&with_sluid(&plain, own)).as_ref(), Ok(&job));
    // It was requeued meanwhile.
    let other = asked(&with_sluid(&plain, "s4J8QZ0T7M2R9D")).unwrap_err();
    assert!(other.contains("job 4711 has the SLUID \"s4J8QZ0T7M2R9D\""), "{other}");
    for wrong in [
        "",
        "s4J8QZ0T7M2R9",
        "s4J8QZ0T7M2R9CC",
        "S4J8QZ0T7M2R9C",
        "s4j8qz0t7m2r9c",
        "s4J8QZ0T7M2R9C,x",
    ] {
        asked(&with_sluid(&plain, wrong)).unwrap_err();
    }
    // A Slurm that prints none, an answer that is cut off, two jobs.
    asked(&plain).unwrap_err();
    let whole = with_sluid(&plain, own);
    for length in [0, 10, 40, 200, whole.find(" MinCPUsNode").unwrap()] {
        asked(&whole[..length]).unwrap_err();
    }
    asked(&format!("{whole}{}", with_sluid(&answer(9, "x", SEVEN, ""), own))).unwrap_err();
    // What its owner writes: also where Slurm says another one.
    for (name, comment) in [
        (format!("x SLUID={own}"), String::new()),
        ("x".to_owned(), format!("x SLUID={own}")),
        (format!("x SLUID={own} UserId=alice(1001)"), String::new()),
        (format!("x\nJobId=9 JobName=y SLUID={own}"), String::new()),
    ] {
        for sluid in [own, "s4J8QZ0T7M2R9D"] {
            asked(&with_sluid(&answer(4711, &name, SEVEN, &comment), sluid)).unwrap_err();
        }
    }
    // The leader of a heterogeneous job is told of with its other parts.
    let part = |id: u32, part: u32, sluid: &str| {
        with_sluid(&answer(id, "x", SEVEN, ""), sluid)
            .replace(" JobName", &format!(" HetJobId=20 HetJobOffset={part} JobName"))
    };
    let both = part(20, 0, own) + &part(21, 1, "s4J8QZ0T7M2R9D");
    assert_eq!(asked(&both), Ok(Told::Several("20+0".to_owned())));
    let leader = Told::Job { id: 20, given: Some(of(Gres::Shard, 7, &[1])) };
    assert_eq!(asked(&part(20, 0, own)), Ok(leader));
    asked(&part(21, 1, "s4J8QZ0T7M2R9D")).unwrap_err();
    // CgroupJobIdPaths=yes: by its number, and SLUIDs do not matter.
    let seven = with_sluid(&answer(7, "x", SEVEN, ""), own);
    assert_eq!(read(&seven).unwrap(), Some(of(Gres::Shard, 7, &[1])));
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
    Device { gres, index, count, place: Place::Card(minor) }
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
fn the_files_of_a_range_are_a_device_each_and_several_files_are_one() {
    let gpu = |index, place| Device { gres: Gres::Gpu, index, count: 1, place };
    let mut one_by_one = Vec::new();
    for (index, minor) in (0..).zip([2, 4, 5]) {
        one_by_one.push(gpu(index, Place::Card(minor)));
    }
    for (line, expected) in [
        // The forms of 22.05, 23.11 and of 26.05 with env_uuid.
        (
            "Name=gpu Type=l40s Count=3 Index=0 ID=1 File=/dev/nvidia[2,4-5] (null)",
            one_by_one.clone(),
        ),
        (
            "Name=gpu Type=l40s Count=3 ID=1 File=/dev/nvidia[2,4-5] Cores=0-31 CoreCnt=64 Links=(null) Flags=HAS_FILE",
            one_by_one.clone(),
        ),
        (
            "Name=gpu Type=(null) Count=3 ID=1 File=/dev/nvidia2,/dev/nvidia[4-5] Links=(null) \
             Flags=HAS_FILE,ENV_NVML,UUID",
            one_by_one,
        ),
        // MIG, with and without flags; a card and a card of instances; several cards at once.
        (
            "Name=gpu Type=h100_1g Count=1 ID=1 File=/dev/nvidia3,/dev/nvidia-caps/nvidia-cap30,\
             /dev/nvidia-caps/nvidia-cap31 Links=0 Flags=HAS_FILE,HAS_TYPE,ENV_NVML,MIG",
            vec![gpu(0, Place::Several(Some(3)))],
        ),
        (
            "Name=gpu Type=h100_1g Count=1 Index=31 ID=1 File=/dev/nvidia3,/dev/nvidia-caps/nvidia-cap[30-31] 0",
            vec![gpu(0, Place::Several(Some(3)))],
        ),
        (
            "Name=gpu Count=1 ID=1 File=/dev/nvidia[0-3] (null)",
            vec![gpu(0, Place::Several(Some(0)))],
        ),
        // What is not ours is counted all the same.
        ("Name=gpu Count=1 ID=1 File=/dev/dri/renderD128 (null)", vec![gpu(0, Place::Other)]),
        ("Name=gpu Count=1 ID=1 File=/dev/nvidia[0- (null)", vec![gpu(0, Place::Other)]),
        ("Name=gpu Count=1 ID=1 File=/dev/nvidia07 (null)", vec![gpu(0, Place::Other)]),
        ("Name=gpu Count=1 ID=1 File=/dev/nvidia-uvm (null)", vec![gpu(0, Place::Other)]),
        ("Name=gpu Count=1 ID=1 Links=(null)", vec![]),
        ("Name=gpu Count=1", vec![]),
        ("Name=gpu Coun", vec![]),
    ] {
        let found = devices(&format!("slurmd: Gres {line}\n"));
        assert_eq!(found, expected, "{line}");
    }
    // Shards of a range are divided among its cards.
    let shards = devices("Gres Name=shard Count=30 ID=1 File=/dev/nvidia[0-1]\n");
    assert_eq!(shards, [device_of(Gres::Shard, 0, 15, 0), device_of(Gres::Shard, 1, 15, 1)]);
    // The next card's number counts what stands before it.
    let mixed = "Gres Name=gpu Count=1 File=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap1 Flags=MIG\n\
                 Gres Name=gpu Count=2 File=/dev/nvidia[1-2]\n";
    assert_eq!(
        devices(mixed),
        [gpu(0, Place::Several(Some(0))), gpu(1, Place::Card(1)), gpu(2, Place::Card(2))]
    );
    let many = "Gres Name=gpu Count=1024 File=/dev/nvidia[0-1023]\n".repeat(9);
    assert_eq!(devices(&many).len(), 1024);
}

#[test]
fn a_job_of_a_range_is_placed_and_one_of_mig_is_told_why_not() {
    let memory_of = |minor| (minor < 2).then_some(Mib(15_000));
    let asked =
        |text: &str, index| ask(&of(Gres::Gpu, 1, &[index]), &devices(text), memory_of, Mib(1024));
    let range = "slurmd: Gres Name=gpu Type=t4 Count=2 ID=7 File=/dev/nvidia[0-1] (null)\n";
    let found = asked(range, 1).unwrap();
    assert_eq!((found.minor, found.memory, found.hint), (1, Mib(15_000), None));
    let mig = "slurmd: Gres Name=gpu Count=1 ID=7 File=/dev/nvidia1,/dev/nvidia-caps/nvidia-cap3 Flags=HAS_FILE\n";
    let refused = asked(mig, 0).unwrap_err();
    assert_eq!(refused.code, Code::GpuUnfit);
    assert_eq!(
        refused.sentence,
        "Slurm has given the job device 0, which has several files (MultipleFiles= in gres.conf), as an instance of \
         MIG on /dev/nvidia1: MIG is not shared through MPS here"
    );
    let amd = "slurmd: Gres Name=gpu Count=1 ID=7 File=/dev/dri/renderD128 (null)\n";
    let refused = asked(amd, 0).unwrap_err();
    assert_eq!(
        refused.sentence,
        "Slurm has given the job device 0, whose File= is no /dev/nvidiaN"
    );
    assert!(asked(range, 2).unwrap_err().sentence.ends_with("slurmd -G tells nothing here"));
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
        hint: None,
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
             refused; Count=15 in gres.conf, and the sum in slurm.conf; or, where these 20 are to be all of its \
             memory, slurm.shard_mib = 768 in /etc/mpsgate/config.toml",
            "Slurm has 10 shards of 1 GiB for /dev/nvidia1, which has 15 GiB to grant: 5 GiB are never given to \
             a job; Count=15 in gres.conf, and the sum in slurm.conf; or, where these 10 are to be all of its \
             memory, slurm.shard_mib = 768 in /etc/mpsgate/config.toml",
            "Slurm shares /dev/nvidia2, which mpsgate does not manage: its jobs get no GPU memory there",
        ]
    );
    assert_eq!(
        said(&[shards(15, 0)]),
        ["Slurm does not know /dev/nvidia1: gres.conf has no File= of it"]
    );
}

#[test]
fn shards_that_are_halves_or_per_cents_of_a_card_are_told_what_a_shard_is_to_be_worth() {
    let cards = [(0, Mib(15_360)), (1, Mib(15_360))];
    let memory_of = |_| Some(Mib(15_360));
    for (count, what, worth) in
        [(2, "13 GiB are never given to a job", 7680), (100, "jobs beyond that are refused", 153)]
    {
        let text: String = (0..2)
            .map(|card| {
                format!(
                    "slurmd: Gres Name=gpu Type=a40 Count=1 Index={card} ID=3 File=/dev/nvidia{card} Links=(null) Flags=HAS_FILE\n\
                     slurmd: Gres Name=shard Type=a40 Count={count} Index={card} ID=4 File=/dev/nvidia{card} Links=(null) \
                     Flags=HAS_FILE,SHARED\n"
                )
            })
            .collect();
        let devices = devices(&text);
        let said = differences(&devices, &cards, Mib(1024));
        assert_eq!(said.len(), 2, "{said:?}");
        for found in said {
            assert!(found.contains(what), "{found}");
            assert!(
                found.ends_with(&format!("slurm.shard_mib = {worth} in /etc/mpsgate/config.toml")),
                "{found}"
            );
        }
        // Followed, there is nothing left to say.
        assert_eq!(differences(&devices, &cards, Mib(worth)), Vec::<String>::new());
        let job = of(Gres::Shard, count, &[1]);
        let followed = ask(&job, &devices, memory_of, Mib(worth)).unwrap();
        assert!(followed.memory <= Mib(15_360) && followed.hint.is_none());
    }
    let hundred = devices("Gres Name=shard Count=100 File=/dev/nvidia1\n");
    let quarter = ask(&of(Gres::Shard, 25, &[0]), &hundred, memory_of, Mib(1024)).unwrap();
    assert_eq!(
        quarter.hint.as_deref(),
        Some(
            "ask for at most --gres=shard:15; where the 100 shards of /dev/nvidia1 are to be all of its memory: \
             slurm.shard_mib = 153 in /etc/mpsgate/config.toml, then: mpsgate reload (docs/slurm.md)"
        )
    );
    // More shards than MiB: there is no such value.
    let many = devices("Gres Name=shard Count=99999 File=/dev/nvidia1\n");
    let hint = ask(&of(Gres::Shard, 25, &[0]), &many, memory_of, Mib(1024)).unwrap().hint;
    assert_eq!(hint.as_deref(), Some("ask for at most --gres=shard:15"));
}

#[test]
fn cards_in_ranges_are_known_and_those_of_instances_are_told_of_once() {
    let cards = [(0, Mib(15_360)), (1, Mib(15_360))];
    let said = |text: &str| differences(&devices(text), &cards, Mib(1024));
    let range = "slurmd: Gres Name=gpu Count=2 ID=7 File=/dev/nvidia[0-1] (null)\n";
    assert_eq!(said(range), Vec::<String>::new());
    let instances: String = (1..4)
        .map(|n| {
            format!(
                "Gres Name=gpu Count=1 File=/dev/nvidia1,/dev/nvidia-caps/nvidia-cap{n} Flags=MIG\n"
            )
        })
        .collect();
    assert_eq!(
        said(&format!("Gres Name=gpu Count=1 File=/dev/nvidia0\n{instances}")),
        [
            "Slurm gives out /dev/nvidia1 by several files together (MultipleFiles= in gres.conf), as instances of MIG: \
          MIG is not shared through MPS here, and jobs on them are refused"
        ]
    );
}
