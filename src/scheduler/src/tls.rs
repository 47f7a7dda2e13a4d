//! The server's certificate, and the CA whose clients are answered, read again when they are
//! replaced: cert-manager and kubeadm renew them while this runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use mpsgate_edge::Remedy as _;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use crate::SchedulerError;

/// Between two looks at the files.
const AGAIN: Duration = Duration::from_secs(60);

/// The files, all PEM.
#[derive(Debug, Clone)]
pub(crate) struct Files {
    /// The server's certificate with its chain.
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    /// Who signs the clients that are answered; without it, whoever comes.
    pub(crate) client_ca: Option<PathBuf>,
}

/// What connections are accepted with.
#[derive(Debug, Clone)]
pub(crate) struct Certificate {
    files: Files,
    now: Arc<RwLock<Arc<ServerConfig>>>,
}

impl Certificate {
    /// # Errors
    /// Where one of the files cannot be used.
    pub(crate) fn load(files: Files) -> Result<Self, SchedulerError> {
        let now = Arc::new(RwLock::new(Arc::new(read(&files)?)));
        Ok(Self { files, now })
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let now = self.now.read().unwrap_or_else(PoisonError::into_inner);
        TlsAcceptor::from(Arc::clone(&now))
    }

    /// Reads the files again and again, for ever.
    pub(crate) async fn keep(self) {
        loop {
            tokio::time::sleep(AGAIN).await;
            match read(&self.files) {
                Ok(config) => {
                    *self.now.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
                }
                Err(error) => {
                    log::warn!(error:% = error, hint = error.hint(); "the old certificate is served on");
                }
            }
        }
    }
}

fn read(files: &Files) -> Result<ServerConfig, SchedulerError> {
    let Files { cert, key, client_ca } = files;
    let chain = chain(cert)?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(broken(key))?;
    let provider = Arc::new(ring::default_provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(broken(cert))?;
    let config = match client_ca {
        None => config.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for root in self::chain(path)? {
                roots.add(root).map_err(broken(path))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            config.with_client_cert_verifier(verifier.build().map_err(broken(path))?)
        }
    };
    let mut config = config.with_single_cert(chain, private).map_err(broken(cert))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, SchedulerError> {
    let all = CertificateDer::pem_file_iter(path).map_err(broken(path))?;
    all.collect::<Result<_, _>>().map_err(broken(path))
}

fn broken<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    path: &Path,
) -> impl Fn(E) -> SchedulerError {
    move |source| SchedulerError::Tls { path: path.to_owned(), source: source.into() }
}
