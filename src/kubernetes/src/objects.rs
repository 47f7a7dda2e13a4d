//! The objects of a kind, as the API server sends them: each is read by itself.
//!
//! ```text
//!  page of a list ─► its items, as text ─┐
//!  event of a watch ─► its object        ├─► read() ─┬─► the object
//!  answer to a request ──────────────────┘           └─► Unread: its name, why, and what of it still counts
//! ```
//! Whoever may write one object must not keep anybody from the others. So a list is split before
//! anything in it is decoded, and bytes that are no text are let through: an API server sends
//! `managedFields` as their author wrote them, byte by byte (seen with 1.20). For that reason the
//! bodies are read here, as kube ends an answer, or a watch, at the first such byte.

use std::error::Error as Cause;
use std::io::{Error as IoError, ErrorKind};
use std::marker::PhantomData;

use futures_util::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, Stream, stream};
use kube::api::{
    DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::core::{Request, Status};
use kube::{Client, Error};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::read::{Found, Object, nullable, read};

/// A page of a list: its items are text until each is read.
#[derive(Deserialize)]
struct RawPage<'a> {
    #[serde(default)]
    metadata: PageMeta,
    #[serde(borrow, deserialize_with = "nullable")]
    items: Vec<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PageMeta {
    resource_version: Option<String>,
    #[serde(rename = "continue")]
    next: Option<String>,
}

/// A page of a list.
pub(crate) struct Page<K> {
    pub(crate) items: Vec<Found<K>>,
    pub(crate) version: Option<String>,
    /// What the next page is asked for with; the last one has none.
    pub(crate) next: Option<String>,
}

impl<K: Object> Page<K> {
    /// # Errors
    /// Where it is no list at all.
    pub(crate) fn parse(json: &str) -> Result<Self, serde_json::Error> {
        let RawPage { metadata, items } = serde_json::from_str(json)?;
        Ok(Self {
            items: items.into_iter().map(|item| read(item.get())).collect(),
            version: metadata.resource_version,
            next: metadata.next.filter(|token| !token.is_empty()),
        })
    }
}

/// One event of a watch.
pub(crate) type Word = Result<WatchEvent<Box<RawValue>>, Error>;

/// The objects of a kind, in the cluster or in a namespace. As kube's `Api`, but for what is read.
pub(crate) struct Objects<K> {
    client: Client,
    request: Request,
    _kind: PhantomData<fn() -> K>,
}

impl<K: Object> Objects<K> {
    /// Those of the whole cluster.
    pub(crate) fn all(client: Client) -> Self {
        Self::at(client, format!("/{}/{}", K::GROUP, K::PLURAL))
    }

    /// Those of one namespace.
    pub(crate) fn namespaced(client: Client, namespace: &str) -> Self {
        Self::at(client, format!("/{}/namespaces/{namespace}/{}", K::GROUP, K::PLURAL))
    }

    fn at(client: Client, path: String) -> Self {
        Self { client, request: Request::new(path), _kind: PhantomData }
    }

    /// One object, as text.
    pub(crate) async fn get_text(&self, name: &str) -> Result<String, Error> {
        let request = self.request.get(name, &GetParams::default()).map_err(Error::BuildRequest)?;
        text(self.client.request_stream(request)).await
    }

    pub(crate) async fn get(&self, name: &str) -> Result<Found<K>, Error> {
        self.get_text(name).await.and_then(|json| answer(&json))
    }

    /// `None` where there is none of that name.
    pub(crate) async fn get_opt(&self, name: &str) -> Result<Option<Found<K>>, Error> {
        match self.get(name).await {
            Err(Error::Api(status)) if status.is_not_found() => Ok(None),
            found => found.map(Some),
        }
    }

    pub(crate) async fn page(&self, params: &ListParams) -> Result<Page<K>, Error> {
        let request = self.request.list(params).map_err(Error::BuildRequest)?;
        let json = text(self.client.request_stream(request)).await?;
        Page::parse(&json).map_err(Error::SerdeError)
    }

    /// The events of a watch, with their objects as text.
    pub(crate) async fn watch(
        &self,
        params: &WatchParams,
        version: &str,
    ) -> Result<impl Stream<Item = Word> + use<K>, Error> {
        let request = self.request.watch(params, version).map_err(Error::BuildRequest)?;
        self.client.request_stream(request).await.map(words)
    }

    pub(crate) async fn create(
        &self,
        params: &PostParams,
        object: &impl Serialize,
    ) -> Result<Found<K>, Error> {
        let body = serde_json::to_vec(object).map_err(Error::SerdeError)?;
        let request = self.request.create(params, body).map_err(Error::BuildRequest)?;
        answer(&text(self.client.request_stream(request)).await?)
    }

    pub(crate) async fn replace(
        &self,
        name: &str,
        params: &PostParams,
        object: &impl Serialize,
    ) -> Result<Found<K>, Error> {
        let body = serde_json::to_vec(object).map_err(Error::SerdeError)?;
        let request = self.request.replace(name, params, body).map_err(Error::BuildRequest)?;
        answer(&text(self.client.request_stream(request)).await?)
    }

    pub(crate) async fn patch(
        &self,
        name: &str,
        params: &PatchParams,
        patch: &Patch<impl Serialize>,
    ) -> Result<Found<K>, Error> {
        let request = self.request.patch(name, params, patch).map_err(Error::BuildRequest)?;
        answer(&text(self.client.request_stream(request)).await?)
    }

    pub(crate) async fn patch_status(
        &self,
        name: &str,
        params: &PatchParams,
        patch: &Patch<impl Serialize>,
    ) -> Result<Found<K>, Error> {
        let request = self.request.patch_subresource("status", name, params, patch);
        let request = request.map_err(Error::BuildRequest)?;
        answer(&text(self.client.request_stream(request)).await?)
    }

    /// What is answered to it is a Status, which nobody reads.
    pub(crate) async fn create_subresource(
        &self,
        subresource: &str,
        name: &str,
        params: &PostParams,
        object: &impl Serialize,
    ) -> Result<(), Error> {
        let body = serde_json::to_vec(object).map_err(Error::SerdeError)?;
        let request = self.request.create_subresource(subresource, name, params, body);
        let request = request.map_err(Error::BuildRequest)?;
        is_json(&text(self.client.request_stream(request)).await?)
    }

    pub(crate) async fn delete(&self, name: &str, params: &DeleteParams) -> Result<(), Error> {
        let request = self.request.delete(name, params).map_err(Error::BuildRequest)?;
        is_json(&text(self.client.request_stream(request)).await?)
    }
}

/// The object of an answer. What is no JSON at all is no answer of an API server.
fn answer<K: Object>(json: &str) -> Result<Found<K>, Error> {
    let found = read(json);
    if found.is_err() {
        is_json(json)?;
    }
    Ok(found)
}

fn is_json(json: &str) -> Result<(), Error> {
    serde_json::from_str::<IgnoredAny>(json).map(drop).map_err(Error::SerdeError)
}

/// The body of an answer.
async fn text(
    answer: impl Future<Output = Result<impl AsyncBufRead, Error>>,
) -> Result<String, Error> {
    let mut body = Box::pin(answer.await?);
    let mut bytes = Vec::new();
    body.read_to_end(&mut bytes).await.map_err(Error::ReadEvents)?;
    Ok(lossy(bytes))
}

/// The events of a watch, one in each line, until it ends or is cut.
fn words(body: impl AsyncBufRead) -> impl Stream<Item = Word> {
    stream::unfold(Some(Box::pin(body)), |body| async move {
        let mut body = body?;
        loop {
            let mut line = Vec::new();
            match body.read_until(b'\n', &mut line).await {
                Ok(0) => return None,
                Ok(_) => match word(&lossy(line)) {
                    // It was cut in the middle.
                    Err(Error::SerdeError(error)) if error.is_eof() => {}
                    told => return Some((told, Some(body))),
                },
                Err(error) if is_cut(&error) => return None,
                Err(error) => return Some((Err(Error::ReadEvents(error)), None)),
            }
        }
    })
}

/// An event. A server that ends a watch may also say so in a Status of its own.
fn word(line: &str) -> Word {
    serde_json::from_str(line).map_err(|error| match serde_json::from_str::<Status>(line) {
        Ok(status) => Error::Api(status.boxed()),
        Err(_) => Error::SerdeError(error),
    })
}

/// Whether the connection has ended in the middle of an answer: a watch goes on from its last
/// version then. As kube tells it.
fn is_cut(error: &IoError) -> bool {
    fn says_so(cause: &(dyn Cause + 'static)) -> bool {
        let io = cause.downcast_ref::<IoError>();
        io.is_some_and(|error| error.kind() == ErrorKind::UnexpectedEof)
            || cause.to_string().contains("unexpected EOF during chunk")
    }
    let mut cause = error.get_ref().map(|inner| -> &(dyn Cause + 'static) { inner });
    while let Some(one) = cause {
        if says_so(one) {
            return true;
        }
        cause = one.source();
    }
    false
}

/// Its text. What is none of UTF-8 is replaced, and all around it stays.
fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;

    use super::*;
    use crate::wire::WirePod;

    /// As an API server sends it of a tenant whose `fieldsV1` has such bytes.
    fn pod(name: &str, bytes: &[u8]) -> Vec<u8> {
        let head = format!(
            r#"{{"metadata":{{"name":"{name}","managedFields":[{{"fieldsV1":{{"f:metadata":{{"f:"#
        );
        let end = br#"":{}}}}],"resourceVersion":"7"}}"#;
        [head.as_bytes(), bytes, end.as_slice()].concat()
    }

    #[tokio::test]
    async fn bytes_that_are_no_text_keep_nobody_from_the_other_objects_of_a_list() {
        // Also what begins a longer character, before a quotation mark.
        let odd: [&[u8]; 4] = [b"\xff\xfe", b"\xe2", b"\xed\xa0\x80", b"\xf0\x9f\x98"];
        for bytes in odd {
            let items = [pod("a", b"x"), pod("b", bytes), pod("c", b"x")].join(&b',');
            let (begin, end) = (br#"{"items":["#.as_slice(), b"]}".as_slice());
            let list = [begin, items.as_slice(), end].concat();
            assert!(String::from_utf8(list.clone()).is_err());
            let json = text(std::future::ready(Ok(list.as_slice()))).await.expect("an answer");
            let page = Page::<WirePod>::parse(&json).expect("a list");
            let read = page.items.iter().filter_map(|found| found.as_ref().ok());
            let names: Vec<_> = read.map(|pod| pod.metadata.name.as_deref()).collect();
            assert_eq!(names, [Some("a"), Some("b"), Some("c")], "{bytes:?}");
        }
    }

    /// What a watch says in these bytes.
    async fn told(lines: &[u8]) -> Vec<Result<String, String>> {
        let name = |object: &RawValue| {
            let pod = read::<WirePod>(object.get()).ok();
            pod.and_then(|pod| pod.metadata.name).unwrap_or_default()
        };
        let said = |word: Word| match word {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => Ok(name(&object)),
            Ok(WatchEvent::Deleted(object)) => Ok(format!("{} is gone", name(&object))),
            Ok(WatchEvent::Bookmark(mark)) => Ok(mark.metadata.resource_version),
            Ok(WatchEvent::Error(status)) => Err(status.message.clone()),
            Err(error) => Err(error.to_string()),
        };
        words(lines).map(said).collect().await
    }

    #[tokio::test]
    async fn a_watch_goes_on_after_bytes_that_are_no_text_and_ends_where_it_is_cut() {
        let event = |kind: &str, object: &[u8]| -> Vec<u8> {
            let head = format!(r#"{{"type":"{kind}","object":"#);
            [head.as_bytes(), object, b"}\n".as_slice()].concat()
        };
        let mark = br#"{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"9"}}"#;
        let mut lines = [
            event("ADDED", &pod("a", b"\xff")),
            event("MODIFIED", &pod("b", b"x")),
            event("DELETED", &pod("a", b"\xe2")),
            event("BOOKMARK", mark.as_slice()),
            event("ADDED", &pod("c", b"x")),
        ]
        .concat();
        let all: Vec<Result<String, String>> =
            ["a", "b", "a is gone", "9", "c"].map(|name| Ok(name.to_owned())).into();
        assert_eq!(told(&lines).await, all);
        // Its last line is whole, but for its end; then it is not.
        lines.pop();
        assert_eq!(told(&lines).await, all);
        lines.pop();
        assert_eq!(told(&lines).await, all[..4]);
        assert!(told(b"").await.is_empty());
        let status = br#"{"kind":"Status","status":"Failure","message":"gone","code":410}"#;
        let said = told(status).await;
        assert!(matches!(&said[..], [Err(error)] if error.contains("gone")), "{said:?}");
        let said = told(b"<html>\n").await;
        assert!(matches!(&said[..], [Err(_)]), "{said:?}");
    }

    #[test]
    fn a_connection_that_ends_in_the_middle_is_told_from_one_that_fails() {
        for (error, expected) in [
            (IoError::other(IoError::from(ErrorKind::UnexpectedEof)), true),
            (IoError::other("unexpected EOF during chunk size line"), true),
            (IoError::other("connection reset"), false),
            (IoError::other(IoError::from(ErrorKind::ConnectionReset)), false),
        ] {
            assert_eq!(is_cut(&error), expected, "{error:?}");
        }
    }
}
