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
//!
//! Nor may many large objects fill the memory of whoever lists them: an answer has a bound, and a
//! page beyond it is asked for in smaller ones.

use std::error::Error as Cause;
use std::io::{Error as IoError, ErrorKind};
use std::marker::PhantomData;

use futures_util::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, Stream, stream};
use kube::api::{
    DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::core::{Request, Status};
use kube::{Client, Error};
use mpsgate_model::printable::make_text;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::read::{Found, Object, nullable, read};

/// Objects in one page, as client-go has it.
pub(crate) const PAGE: u32 = 500;
/// Bytes of one answer, and of one event of a watch. No object of an API server has as many.
const MOST: u64 = 64 << 20;

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
    /// [`MOST`], but for a test.
    most: u64,
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
        Self { client, request: Request::new(path), most: MOST, _kind: PhantomData }
    }

    /// One object, as text.
    pub(crate) async fn get_text(&self, name: &str) -> Result<String, Error> {
        let request = self.request.get(name, &GetParams::default()).map_err(Error::BuildRequest)?;
        text(self.client.request_stream(request), self.most).await
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
        let json = text(self.client.request_stream(request), self.most).await?;
        Page::parse(&json).map_err(Error::SerdeError)
    }

    /// The next page. Where it is too long, `params` ask for fewer objects at once from then on.
    pub(crate) async fn next_page(&self, params: &mut ListParams) -> Result<Page<K>, Error> {
        loop {
            match self.page(params).await {
                Err(error) if is_too_long(&error) && narrow(params) => {
                    log::debug!(kind = K::KIND; "a page is too long: smaller ones follow");
                }
                Err(error) => return Err(error),
                Ok(page) => {
                    // A few that are large are no reason to ask for all others one by one.
                    params.limit = params.limit.map(|limit| limit.saturating_mul(2).min(PAGE));
                    return Ok(page);
                }
            }
        }
    }

    /// The events of a watch, with their objects as text.
    pub(crate) async fn watch(
        &self,
        params: &WatchParams,
        version: &str,
    ) -> Result<impl Stream<Item = Word> + use<K>, Error> {
        let request = self.request.watch(params, version).map_err(Error::BuildRequest)?;
        let body = self.client.request_stream(request).await?;
        Ok(words(body, self.most))
    }

    pub(crate) async fn create(
        &self,
        params: &PostParams,
        object: &impl Serialize,
    ) -> Result<Found<K>, Error> {
        let body = serde_json::to_vec(object).map_err(Error::SerdeError)?;
        let request = self.request.create(params, body).map_err(Error::BuildRequest)?;
        answer(&text(self.client.request_stream(request), self.most).await?)
    }

    pub(crate) async fn replace(
        &self,
        name: &str,
        params: &PostParams,
        object: &impl Serialize,
    ) -> Result<Found<K>, Error> {
        let body = serde_json::to_vec(object).map_err(Error::SerdeError)?;
        let request = self.request.replace(name, params, body).map_err(Error::BuildRequest)?;
        answer(&text(self.client.request_stream(request), self.most).await?)
    }

    pub(crate) async fn patch(
        &self,
        name: &str,
        params: &PatchParams,
        patch: &Patch<impl Serialize>,
    ) -> Result<Found<K>, Error> {
        let request = self.request.patch(name, params, patch).map_err(Error::BuildRequest)?;
        answer(&text(self.client.request_stream(request), self.most).await?)
    }

    pub(crate) async fn patch_status(
        &self,
        name: &str,
        params: &PatchParams,
        patch: &Patch<impl Serialize>,
    ) -> Result<Found<K>, Error> {
        let request = self.request.patch_subresource("status", name, params, patch);
        let request = request.map_err(Error::BuildRequest)?;
        answer(&text(self.client.request_stream(request), self.most).await?)
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
        is_json(&text(self.client.request_stream(request), self.most).await?)
    }

    pub(crate) async fn delete(&self, name: &str, params: &DeleteParams) -> Result<(), Error> {
        let request = self.request.delete(name, params).map_err(Error::BuildRequest)?;
        is_json(&text(self.client.request_stream(request), self.most).await?)
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

/// The body of an answer, of at most so many bytes.
async fn text(
    answer: impl Future<Output = Result<impl AsyncBufRead, Error>>,
    most: u64,
) -> Result<String, Error> {
    let mut body = Box::pin(answer.await?).take(most.saturating_add(1));
    let mut bytes = Vec::new();
    body.read_to_end(&mut bytes).await.map_err(Error::ReadEvents)?;
    if body.limit() == 0 { Err(too_long(most)) } else { Ok(lossy(bytes)) }
}

fn too_long(most: u64) -> Error {
    let why = format!("an answer is longer than {most} bytes");
    Error::ReadEvents(IoError::new(ErrorKind::FileTooLarge, why))
}

fn is_too_long(error: &Error) -> bool {
    matches!(error, Error::ReadEvents(error) if error.kind() == ErrorKind::FileTooLarge)
}

/// Asks for fewer objects at once, where that can be. In pages none come from the API server's
/// cache.
fn narrow(params: &mut ListParams) -> bool {
    if params.limit == Some(1) {
        return false;
    }
    params.limit = Some(params.limit.map_or(PAGE, |limit| (limit / 8).max(1)));
    params.resource_version = None;
    params.version_match = None;
    true
}

/// The events of a watch, one in each line of at most so many bytes, until it ends or is cut.
fn words(body: impl AsyncBufRead, most: u64) -> impl Stream<Item = Word> {
    stream::unfold(Some(Box::pin(body)), move |body| async move {
        let mut body = body?;
        loop {
            let mut line = Vec::new();
            let mut within = body.as_mut().take(most.saturating_add(1));
            let read = within.read_until(b'\n', &mut line).await;
            if within.limit() == 0 {
                return Some((Err(too_long(most)), None));
            }
            match read {
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

/// Its text, in the same memory.
fn lossy(mut bytes: Vec<u8>) -> String {
    make_text(&mut bytes);
    String::from_utf8(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use fake_api_server::{Answer, ApiServer, Request};
    use futures_util::StreamExt as _;
    use kube::api::VersionMatch;
    use serde_json::{Value, json};

    use super::*;
    use crate::Settings;
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
            let json =
                text(std::future::ready(Ok(list.as_slice())), MOST).await.expect("an answer");
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
        words(lines, 1000).map(said).collect().await
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
        // Of one that is too long nothing more is read.
        let long = [event("ADDED", &pod("a", &[b'x'; 1000])), event("ADDED", &pod("b", b"x"))];
        let said = told(&long.concat()).await;
        assert!(matches!(&said[..], [Err(error)] if error.contains("longer than")), "{said:?}");
    }

    /// A list of 100, in pages where a limit is asked for. The one in the middle is the longest.
    fn pages(request: &Request) -> Answer {
        let asked = |name: &str| -> Option<usize> {
            let mut words = request.line.split(['?', '&', ' ']);
            words.find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
        };
        let from = asked("continue").unwrap_or(0);
        let until = asked("limit").map_or(100, |limit| from + limit).min(100);
        let item = |n: usize| {
            let length = if n == 50 { 900 } else { 60 };
            json!({"metadata": {"name": n.to_string(), "longest": "x".repeat(length)}})
        };
        let items: Vec<Value> = (from..until).map(item).collect();
        let next = (until < 100).then(|| until.to_string());
        let metadata = json!({"resourceVersion": "7", "continue": next});
        Answer::Whole(200, json!({"metadata": metadata, "items": items}).to_string())
    }

    #[tokio::test]
    async fn a_page_that_is_too_long_is_asked_for_in_smaller_ones_and_nothing_comes_twice() {
        let server = ApiServer::start(pages);
        let settings = Settings::find(Some(server.kubeconfig.path().to_owned()), "n");
        let client = settings.expect("named").connect().await.expect("a client");
        let mut pods = Objects::<WirePod>::all(client);
        let cached = ListParams {
            resource_version: Some("0".to_owned()),
            version_match: Some(VersionMatch::NotOlderThan),
            ..ListParams::default()
        };
        pods.most = 1200;
        let (mut params, mut names) = (cached.clone(), Vec::new());
        loop {
            let page = pods.next_page(&mut params).await.expect("a page");
            names.extend(page.items.into_iter().map(|pod| pod.expect("read").metadata.name));
            params.continue_token = page.next;
            if params.continue_token.is_none() {
                break;
            }
        }
        let all: Vec<_> = (0..100).map(|n: u32| Some(n.to_string())).collect();
        assert_eq!(names, all);
        let lines: Vec<String> = server.asked().into_iter().map(|asked| asked.line).collect();
        assert!(lines[0].contains("resourceVersion=0") && !lines[0].contains("limit="));
        for (line, limit) in lines[1..].iter().zip([500, 62, 7, 14]) {
            assert!(line.contains(&format!("limit={limit}")), "{lines:?}");
            assert!(!line.contains("resourceVersion"), "{lines:?}");
        }
        // One that is too long by itself cannot be had.
        pods.most = 60;
        params = cached;
        let Err(error) = pods.next_page(&mut params).await else { panic!("it is read") };
        assert!(is_too_long(&error), "{error}");
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
