//! Records of the FIFO `log`, by which servers write into their daemon's log.

/// The component is in the lowest bits.
const MAGIC: u32 = 0xabcd_e000;
pub(crate) const CONTROL: u32 = 0;
pub(crate) const SERVER: u32 = 1;
/// Magic, pid, seven words of a date, one more, and the length of the text.
const HEAD: usize = 48;
/// Longest text that is taken.
const TEXT_MAX: usize = 4096;

pub(crate) fn bytes(component: u32, pid: u32, text: &str) -> Vec<u8> {
    let words = [MAGIC | component, pid, 2026, 1, 1, 0, 0, 0, 0, 1];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.extend((text.len() as u64).to_ne_bytes());
    bytes.extend(text.as_bytes());
    bytes
}

/// Takes whole records from the front: component, pid and text of each. `None` where it is no
/// record: the real daemon reads no more then.
pub(crate) fn take(from: &mut Vec<u8>) -> Option<Vec<(&'static str, u32, String)>> {
    let mut records = Vec::new();
    while from.len() >= HEAD {
        let word = |at: usize| u32::from_ne_bytes(from[at..at + 4].try_into().unwrap_or_default());
        let component = match word(0) ^ MAGIC {
            CONTROL => "Control",
            SERVER => "Server",
            _ => return None,
        };
        let length = from[HEAD - 8..HEAD].try_into().map(u64::from_ne_bytes).ok()?;
        let length = usize::try_from(length).ok().filter(|length| *length <= TEXT_MAX)?;
        if from.len() < HEAD + length {
            break;
        }
        let text = String::from_utf8_lossy(&from[HEAD..HEAD + length]).into_owned();
        records.push((component, word(4), text));
        from.drain(..HEAD + length);
    }
    Some(records)
}
