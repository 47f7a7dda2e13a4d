//! Who is answered where the extender wants a client's certificate.

use std::path::Path;
use std::sync::Arc;

use clap::Parser as _;
use mpsgate_edge::{ExitCode, Remedy as _};
use mpsgate_kubernetes::Patience;
use mpsgate_scheduler::{Arguments, serve};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

use super::{Scheduler, world};

/// As an operator makes them.
fn openssl(dir: &Path, arguments: &str) {
    #[expect(clippy::disallowed_types, reason = "certificates are made by a program")]
    let made = std::process::Command::new("openssl")
        .args(arguments.split(' '))
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "openssl {arguments}: {}",
        String::from_utf8_lossy(&made.stderr)
    );
}

/// A CA, and what it has signed: NAME.crt, NAME.key.
fn authority(dir: &Path, ca: &str, signed: &[&str]) {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(dir, &format!("req -x509 {key} -days 2 -subj /CN={ca} -keyout {ca}.key -out {ca}.crt"));
    for name in signed {
        openssl(
            dir,
            &format!(
                "req -x509 {key} -days 2 -subj /CN={name} -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE \
                 -CA {ca}.crt -CAkey {ca}.key -keyout {name}.key -out {name}.crt"
            ),
        );
    }
}

/// What is answered to a request, as whom; nothing where the connection is refused.
async fn asks(scheduler: &Scheduler, dir: &Path, me: Option<&str>, path: &str) -> Option<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(dir.join("ca.crt")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match me {
        None => config.with_no_client_auth(),
        Some(name) => {
            let cert = CertificateDer::from_pem_file(dir.join(format!("{name}.crt"))).unwrap();
            let key = PrivateKeyDer::from_pem_file(dir.join(format!("{name}.key"))).unwrap();
            config.with_client_auth_cert(vec![cert], key).unwrap()
        }
    };
    let stream = TcpStream::connect(scheduler.address).await.unwrap();
    let server = ServerName::try_from("127.0.0.1").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(server, stream).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.ok()?;
    String::from_utf8(answer).ok().filter(|answer| !answer.is_empty())
}

#[tokio::test]
async fn only_who_shows_a_certificate_of_the_client_ca_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    authority(at, "ca", &["server", "stranger"]);
    authority(at, "clients", &["kube-scheduler"]);
    let file = |name: &str| at.join(name).to_str().unwrap().to_owned();
    let (cert, key, clients) = (file("server.crt"), file("server.key"), file("clients.crt"));
    let flags = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &clients];
    let mut placed = world(&[]);
    placed.add_bound("a", "n1", 7);
    let scheduler = Scheduler::start(placed, &flags).await;
    // TLS 1.3 tells a client that its certificate is not trusted only when it reads.
    for nobody in [None, Some("stranger"), Some("server")] {
        assert_eq!(asks(&scheduler, at, nobody, "/healthz").await, None, "{nobody:?}");
    }
    let healthy = asks(&scheduler, at, Some("kube-scheduler"), "/healthz").await.unwrap();
    assert!(healthy.starts_with("HTTP/1.1 200"), "{healthy}");
    let shown = async {
        loop {
            let shown =
                asks(&scheduler, at, Some("kube-scheduler"), "/mpsgate/inspect").await.unwrap();
            if shown.contains("uid-a") {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(super::PATIENCE, shown).await.expect("who is known sees uids");
}

#[tokio::test]
async fn on_an_address_that_others_reach_it_starts_only_where_it_knows_its_clients() {
    let scheduler = Scheduler::start(world(&[]), &[]).await;
    let kubeconfig = scheduler.api.server.kubeconfig.path().to_str().unwrap();
    let started = async |flags: &[&str]| {
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let mut line = vec!["mpsgate-scheduler", "--kubeconfig", kubeconfig];
        line.extend(flags);
        serve(Arguments::parse_from(line), Patience::default(), listener, async {}).await
    };
    let error = started(&[]).await.unwrap_err();
    assert!(error.to_string().contains("whoever reaches 0.0.0.0"), "{error}");
    let hint = error.hint().unwrap();
    assert!(hint.contains("--tls-client-ca") && hint.contains("--allow-anonymous"));
    assert_eq!(error.exit_code(), ExitCode::BadConfig);
    started(&["--allow-anonymous"]).await.unwrap();
}
