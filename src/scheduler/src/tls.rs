//! The server's certificate, read again when it is replaced: cert-manager and kubeadm renew it while this runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::SchedulerError;

/// Between two looks at the files.
const AGAIN: Duration = Duration::from_secs(60);

/// What connections are accepted with.
#[derive(Debug, Clone)]
pub(crate) struct Certificate {
    cert: PathBuf,
    key: PathBuf,
    now: Arc<RwLock<Arc<ServerConfig>>>,
}

impl Certificate {
    /// Of two PEM files.
    ///
    /// # Errors
    /// Where one of them cannot be used.
    pub(crate) fn load(cert: PathBuf, key: PathBuf) -> Result<Self, SchedulerError> {
        let now = Arc::new(RwLock::new(Arc::new(read(&cert, &key)?)));
        Ok(Self { cert, key, now })
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let now = self.now.read().unwrap_or_else(PoisonError::into_inner);
        TlsAcceptor::from(Arc::clone(&now))
    }

    /// Reads the files again and again, for ever.
    pub(crate) async fn keep(self) {
        loop {
            tokio::time::sleep(AGAIN).await;
            match read(&self.cert, &self.key) {
                Ok(config) => {
                    *self.now.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
                }
                Err(error) => {
                    log::warn!(error:% = error, hint = error.hint().as_str(); "the old certificate is served on");
                }
            }
        }
    }
}

fn read(cert: &Path, key: &Path) -> Result<ServerConfig, SchedulerError> {
    fn broken<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        path: &Path,
    ) -> impl Fn(E) -> SchedulerError {
        move |source| SchedulerError::Tls { path: path.to_owned(), source: source.into() }
    }
    let chain = CertificateDer::pem_file_iter(cert).map_err(broken(cert))?;
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(broken(cert))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(broken(key))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(broken(cert))?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(broken(cert))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
