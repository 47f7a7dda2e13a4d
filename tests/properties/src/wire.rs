//! Messages of the daemon's socket.

use mpsgate_api::{
    Envelope, FrameError, MAX_FRAME, Reply, VERSION, WireRefusal, WouldEnd, compatible,
    decode_length, encode, parse_envelope,
};
use mpsgate_host::fd_store;
use mpsgate_model::{Refusal, printable};
use mpsgate_mps::supervisor;
use serde::Serialize;

/// A frame's bytes are an error, a version that is too far away, or a call that is sent again the
/// same. So is a reply. A refusal keeps its sentence and hint, and no length is read that a frame
/// cannot have.
pub(crate) fn message(data: &[u8]) {
    if let Some(prefix) = data.first_chunk::<4>()
        && let Ok(length) = decode_length(*prefix)
    {
        assert!((1..=MAX_FRAME).contains(&length));
    }
    match parse_envelope(data) {
        Ok(envelope) => {
            assert!(compatible(envelope.version));
            same_again::<Envelope>(&envelope);
        }
        Err(FrameError::Version(version)) => assert!(version.abs_diff(VERSION) > 1),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(reply) = serde_json::from_slice::<Reply>(data) {
        same_again::<Reply>(&reply);
        match reply {
            Reply::Refused(wire) => refusal(wire),
            // The list is text within the reply, read by the operator's command alone.
            Reply::WouldEnd { list } => {
                if let Ok(list) = list.read() {
                    same_again::<WouldEnd>(&list);
                }
            }
            _ => {}
        }
    }
}

fn same_again<T: Serialize + serde::de::DeserializeOwned>(message: &T) {
    let text = serde_json::to_vec(message).unwrap();
    let again: T = serde_json::from_slice(&text).unwrap();
    assert_eq!(serde_json::to_vec(&again).unwrap(), text);
    let frame = encode(message).unwrap();
    let (prefix, content) = frame.split_first_chunk::<4>().unwrap();
    assert_eq!((decode_length(*prefix).unwrap(), content), (text.len(), &*text));
}

fn refusal(wire: WireRefusal) {
    let (sentence, hint) = (wire.sentence.clone(), wire.hint.clone());
    let refusal = Refusal::from(wire);
    assert!(refusal.sentence.starts_with(&*printable::line(&sentence)));
    assert_eq!(refusal.hint, hint);
    // A name that a container's author chose must not make a line of its own in a log.
    assert!(!refusal.render("c").is_empty());
}

/// What the holder is asked and answers is an error, or the same when it is written and read again,
/// also on the socket for gates.
pub(crate) fn hold_message(data: &[u8]) {
    if let Ok(request) = fd_store::read::<fd_store::Request>(data) {
        assert_eq!(
            fd_store::read::<fd_store::Request>(&fd_store::write(&request).unwrap()).unwrap(),
            request
        );
    }
    if let Ok(answer) = fd_store::read::<fd_store::Answer>(data) {
        assert_eq!(
            fd_store::read::<fd_store::Answer>(&fd_store::write(&answer).unwrap()).unwrap(),
            answer
        );
    }
    if let Ok(request) = supervisor::decode::<supervisor::Request>(data) {
        let written = supervisor::encode(&request).unwrap();
        assert_eq!(supervisor::decode::<supervisor::Request>(&written).unwrap(), request);
    }
    if let Ok(answer) = supervisor::decode::<supervisor::Answer>(data) {
        let written = supervisor::encode(&answer).unwrap();
        assert_eq!(supervisor::decode::<supervisor::Answer>(&written).unwrap(), answer);
    }
}
