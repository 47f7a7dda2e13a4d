//! The few roff requests that clap_mangen has no function for.

/// One line of text in which nothing is a request.
pub(crate) fn escape(text: &str) -> String {
    let text =
        text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq").replace('`', "\\(ga");
    // A full stop or a quote at the beginning of a line would be a request.
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

/// The first line of a page. Without a date, so that the same source always gives the same page.
pub(crate) fn title(name: &str, number: u8) -> String {
    let (name, version) = (escape(&name.to_uppercase()), env!("CARGO_PKG_VERSION"));
    format!(".TH {name} {number} \"\" \"mpsgate {version}\" \"mpsgate\"\n")
}

/// A section.
pub(crate) fn section(title: &str) -> String {
    format!(".SH {title}\n")
}

/// Lines as they are: commands, tables.
pub(crate) fn literal(lines: &[&str]) -> String {
    let mut text = ".nf\n.RS 4\n".to_owned();
    for line in lines {
        // An empty line inside is one of the text.
        text.push_str(&if line.is_empty() { "\\&".to_owned() } else { escape(line) });
        text.push('\n');
    }
    text + ".RE\n.fi\n"
}

/// An item of a list with what stands below it.
pub(crate) fn item(heading: &str, body: &str) -> String {
    format!(".TP\n{heading}\n{body}\n")
}

/// What other pages there are.
pub(crate) fn see_also(pages: &[String]) -> String {
    let pages: Vec<String> = pages
        .iter()
        .map(|page| match page.rsplit_once('.') {
            Some((name, number)) => format!("\\fB{}\\fR({number})", escape(name)),
            None => escape(page),
        })
        .collect();
    format!("{}{}\n", section("SEE ALSO"), pages.join(",\n"))
}
