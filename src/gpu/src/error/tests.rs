//! The texts of errors and their remedies.

use super::*;

fn lost(index: Option<u32>, uuid: Option<&str>, action: CardAction) -> CardError {
    CardError { index, uuid: uuid.map(str::to_owned), action, source: NvmlError::GpuLost }
}

#[test]
fn a_card_error_names_all_that_is_known_of_the_card() {
    let read = CardAction::Read("memory");
    let set = CardAction::SetComputeMode(ComputeMode::ExclusiveProcess);
    for (error, text) in [
        (lost(Some(1), Some("GPU-b"), read), "cannot read the memory of card 1 (GPU-b)"),
        (lost(Some(1), None, CardAction::Open), "cannot open card 1"),
        (lost(None, Some("GPU-b"), set), "cannot set compute mode EXCLUSIVE_PROCESS on card GPU-b"),
        (lost(None, None, CardAction::Open), "cannot open a card"),
    ] {
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn the_hint_for_a_lost_card_can_be_pasted() {
    let by_uuid = GpuError::from(lost(Some(1), Some("GPU-b"), CardAction::Open)).hint();
    assert!(by_uuid.is_some_and(|hint| hint.contains("--gpu-reset -i GPU-b")));
    let by_index = lost(Some(1), None, CardAction::Open).hint();
    assert!(by_index.is_some_and(|hint| hint.contains("--gpu-reset -i 1")));
}

#[test]
fn a_person_who_may_not_set_the_compute_mode_has_to_be_root() {
    let mut error = lost(Some(0), None, CardAction::SetComputeMode(ComputeMode::Default));
    error.source = NvmlError::NoPermission;
    assert!(error.hint().is_some_and(|hint| hint.contains("root of the host")));
}

#[test]
fn every_answer_that_an_operator_can_cure_has_a_hint() {
    for source in [
        NvmlError::DriverNotLoaded,
        NvmlError::LibRmVersionMismatch,
        NvmlError::NoPermission,
        NvmlError::OperatingSystem,
        NvmlError::FailedToLoadSymbol("nvmlDeviceGetMemoryInfo_v2".to_owned()),
        NvmlError::FunctionNotFound,
        NvmlError::LibraryNotFound,
        NvmlError::GpuLost,
        NvmlError::ResetRequired,
        NvmlError::InUse,
        NvmlError::InsufficientPower,
        NvmlError::IrqIssue,
        NvmlError::CorruptedInfoROM,
        NvmlError::NotSupported,
        NvmlError::Unknown,
        NvmlError::Timeout,
        NvmlError::InsufficientMemory,
    ] {
        let error = GpuError::System { action: "count the cards", source };
        assert!(error.hint().is_some(), "{error:?}");
    }
}
