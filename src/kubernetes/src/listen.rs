//! One list and the watches that follow it, until something fails. Called by: `follow`, which
//! begins anew then.
//!
//! A watch of which nothing changes says nothing. So the server is asked to end each one soon, and
//! the next one goes on from the version where that ended: whoever says nothing for longer than a
//! watch lasts is not there. Not kube's watcher: it shows neither the end of a watch nor a
//! bookmark, by which one that is quiet is told from one that is dead.

use std::future::IntoFuture;

use futures_util::StreamExt as _;
use kube::api::{ListParams, VersionMatch, WatchEvent, WatchParams};
use kube::runtime::watcher::Event;
use serde_json::value::RawValue;

use crate::Error;
use crate::api_access::Patience;
use crate::objects::{Objects, PAGE};
use crate::read::{Found, Object, read};

/// Where a list comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lists {
    /// The server's cache: a list of every node at once must not reach etcd. It may be some seconds
    /// old.
    Cached,
    /// What holds now, in pages: who decides for the whole cluster must not begin with what was.
    Fresh,
}

/// What is listed and watched.
pub(crate) struct Listener<'a, K> {
    pub(crate) objects: Objects<K>,
    pub(crate) lists: Lists,
    /// For errors.
    pub(crate) what: &'a str,
    /// A selector; empty for all.
    pub(crate) fields: &'a str,
    pub(crate) patience: Patience,
}

impl<K: Object> Listener<'_, K> {
    /// Tells what there is and each change of it; returns why it cannot go on. An object that
    /// cannot be read is told as one, and keeps nobody from the others.
    pub(crate) async fn listen(&self, mut tell: impl FnMut(Event<Found<K>>)) -> Error {
        let mut version = match self.list(&mut tell).await {
            Ok(version) => version,
            Err(error) => return error,
        };
        loop {
            version = match self.watch(version, &mut tell).await {
                Ok(version) => version,
                Err(error) => return error,
            }
        }
    }

    /// The list's version.
    async fn list(&self, tell: &mut impl FnMut(Event<Found<K>>)) -> Result<String, Error> {
        let mut params = ListParams { field_selector: self.selector(), ..ListParams::default() };
        match self.lists {
            // In pages it would not come from the cache.
            Lists::Cached => {
                params.resource_version = Some("0".to_owned());
                params.version_match = Some(VersionMatch::NotOlderThan);
            }
            Lists::Fresh => params.limit = Some(PAGE),
        }
        tell(Event::Init);
        loop {
            let page = self.objects.next_page(&mut params).await;
            let page = page.map_err(|error| self.failed(error))?;
            page.items.into_iter().for_each(|found| tell(Event::InitApply(found)));
            params.continue_token = page.next;
            if params.continue_token.is_none() {
                let version = self.versioned(page.version)?;
                tell(Event::InitDone);
                return Ok(version);
            }
        }
    }

    /// One watch, from `version` to its end; the version that was reached.
    async fn watch(
        &self,
        mut version: String,
        tell: &mut impl FnMut(Event<Found<K>>),
    ) -> Result<String, Error> {
        let params = WatchParams {
            field_selector: self.selector(),
            timeout: Some(self.patience.watch_seconds),
            bookmarks: true,
            ..WatchParams::default()
        };
        let opened = self.heard(self.objects.watch(&params, &version)).await?;
        let mut words = std::pin::pin!(opened.map_err(|error| self.failed(error))?);
        while let Some(word) = self.heard(words.next()).await? {
            match word.map_err(|error| self.failed(error))? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let (found, at) = self.read(&object)?;
                    version = at;
                    tell(Event::Apply(found));
                }
                WatchEvent::Deleted(object) => {
                    let (found, at) = self.read(&object)?;
                    version = at;
                    tell(Event::Delete(found));
                }
                WatchEvent::Bookmark(mark) => version = mark.metadata.resource_version,
                WatchEvent::Error(status) => return Err(self.failed(kube::Error::Api(status))),
            }
        }
        Ok(version)
    }

    /// An object, and its version.
    fn read(&self, object: &RawValue) -> Result<(Found<K>, String), Error> {
        let found = read::<K>(object.get());
        let version = match &found {
            Ok(object) => object.version().map(str::to_owned),
            Err(unread) => unread.meta.resource_version.clone(),
        };
        Ok((found, self.versioned(version)?))
    }

    /// The next heartbeat, of which there is one in time.
    async fn heard<T>(&self, next: impl IntoFuture<Output = T>) -> Result<T, Error> {
        let silence = self.patience.silence;
        tokio::time::timeout(silence, next)
            .await
            .map_err(|_| Error::Silent { what: self.what.to_owned(), seconds: silence.as_secs() })
    }

    fn selector(&self) -> Option<String> {
        (!self.fields.is_empty()).then(|| self.fields.to_owned())
    }

    fn failed(&self, source: kube::Error) -> Error {
        Error::Watch { what: self.what.to_owned(), source: Box::new(source) }
    }

    fn versioned(&self, version: Option<String>) -> Result<String, Error> {
        let version = version.filter(|version| !version.is_empty());
        version.ok_or_else(|| Error::NoVersion { what: self.what.to_owned() })
    }
}
