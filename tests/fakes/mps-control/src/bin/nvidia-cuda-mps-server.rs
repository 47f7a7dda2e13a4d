//! The server's double: a process with the right name, uid, environment and lifetime. It does
//! nothing; its control daemon keeps the books.
use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::var_os("CUDA_MPS_LOG_DIRECTORY")
        .is_some_and(|dir| std::path::Path::new(&dir).join("fake-server-dies").exists())
    {
        return ExitCode::FAILURE;
    }
    loop {
        // Ends by signal only, as an orphan must outlive its control daemon.
        std::thread::park();
    }
}
