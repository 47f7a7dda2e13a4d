//! The objects of a kind, as the API server sends them: each is read by itself.
//!
//! ```text
//!  page of a list ─► its items, as text ─┐
//!  event of a watch ─► its object        ├─► read() ─┬─► the object
//!  answer to a request ──────────────────┘           └─► Unread: its name, why, and what of it still counts
//! ```
//! Whoever may write one object must not keep anybody from the others. So a list is split before
//! anything in it is decoded.

use std::marker::PhantomData;

use futures_util::Stream;
use kube::api::{
    DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::core::Request;
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
        self.client.request_text(request).await
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
        let json = self.client.request_text(request).await?;
        Page::parse(&json).map_err(Error::SerdeError)
    }

    /// The events of a watch, with their objects as text.
    pub(crate) async fn watch(
        &self,
        params: &WatchParams,
        version: &str,
    ) -> Result<impl Stream<Item = Word> + use<K>, Error> {
        let request = self.request.watch(params, version).map_err(Error::BuildRequest)?;
        self.client.request_events::<Box<RawValue>>(request).await
    }

    pub(crate) async fn create(
        &self,
        params: &PostParams,
        object: &impl Serialize,
    ) -> Result<Found<K>, Error> {
        let body = serde_json::to_vec(object).map_err(Error::SerdeError)?;
        let request = self.request.create(params, body).map_err(Error::BuildRequest)?;
        answer(&self.client.request_text(request).await?)
    }

    pub(crate) async fn replace(
        &self,
        name: &str,
        params: &PostParams,
        object: &impl Serialize,
    ) -> Result<Found<K>, Error> {
        let body = serde_json::to_vec(object).map_err(Error::SerdeError)?;
        let request = self.request.replace(name, params, body).map_err(Error::BuildRequest)?;
        answer(&self.client.request_text(request).await?)
    }

    pub(crate) async fn patch(
        &self,
        name: &str,
        params: &PatchParams,
        patch: &Patch<impl Serialize>,
    ) -> Result<Found<K>, Error> {
        let request = self.request.patch(name, params, patch).map_err(Error::BuildRequest)?;
        answer(&self.client.request_text(request).await?)
    }

    pub(crate) async fn patch_status(
        &self,
        name: &str,
        params: &PatchParams,
        patch: &Patch<impl Serialize>,
    ) -> Result<Found<K>, Error> {
        let request = self.request.patch_subresource("status", name, params, patch);
        answer(&self.client.request_text(request.map_err(Error::BuildRequest)?).await?)
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
        self.client.request::<IgnoredAny>(request.map_err(Error::BuildRequest)?).await.map(drop)
    }

    pub(crate) async fn delete(&self, name: &str, params: &DeleteParams) -> Result<(), Error> {
        let request = self.request.delete(name, params).map_err(Error::BuildRequest)?;
        self.client.request::<IgnoredAny>(request).await.map(drop)
    }
}

/// The object of an answer. What is no JSON at all is no answer of an API server.
fn answer<K: Object>(json: &str) -> Result<Found<K>, Error> {
    let found = read(json);
    if found.is_err() {
        serde_json::from_str::<IgnoredAny>(json).map_err(Error::SerdeError)?;
    }
    Ok(found)
}
