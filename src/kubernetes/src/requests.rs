//! Single requests, each with its limit of time, by a client that is kept while it works.

use std::sync::Mutex;
use std::time::Duration;

use kube::Client;

use crate::{Error, Settings};

/// Asks one API server.
#[derive(Debug)]
pub(crate) struct Requests {
    settings: Settings,
    /// Each request's.
    patience: Duration,
    /// Of the last request that worked.
    client: Mutex<Option<Kept>>,
}

/// [`Client`] has no `Debug`.
struct Kept(Client);

impl std::fmt::Debug for Kept {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Client")
    }
}

impl Requests {
    /// `patience` is what each request may take.
    pub(crate) fn new(settings: Settings, patience: Duration) -> Self {
        Self { settings, patience, client: Mutex::new(None) }
    }

    /// The client of the last request that worked, or a new one with the credentials as they are
    /// now.
    pub(crate) async fn ask<T, F: Future<Output = Result<T, kube::Error>>>(
        &self,
        what: String,
        request: impl FnOnce(Client) -> F,
    ) -> Result<T, Error> {
        let kept =
            self.client.lock().ok().and_then(|kept| kept.as_ref().map(|kept| kept.0.clone()));
        let client = match kept {
            Some(client) => client,
            None => self.settings.connect().await?,
        };
        let answer = tokio::time::timeout(self.patience, request(client.clone())).await;
        // An answer of the API server is one, whatever it says; but with 401 the credentials have
        // changed.
        let works = match &answer {
            Ok(Ok(_)) => true,
            Ok(Err(kube::Error::Api(status))) => status.code != 401,
            _ => false,
        };
        if let Ok(mut kept) = self.client.lock() {
            *kept = works.then_some(Kept(client));
        }
        match answer {
            Ok(answer) => answer.map_err(|source| Error::Write { what, source: Box::new(source) }),
            Err(_) => Err(Error::Late { what, seconds: self.patience.as_secs() }),
        }
    }
}

/// What is gone already is as it was to be.
pub(crate) fn unless_gone<T>(done: Result<T, Error>) -> Result<(), Error> {
    match done {
        Err(error) if error.status() != Some(404) => Err(error),
        _ => Ok(()),
    }
}
