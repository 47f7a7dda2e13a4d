//! The directories of the host that the options of an overlay name.
//!
//! The kernel splits options at commas, and `lowerdir` at colons, unless a backslash comes before;
//! `::` begins data layers. In a path a backslash escapes the character after it
//! (Documentation/filesystems/overlayfs.rst; `ovl_next_opt`, `ovl_unescape`).

/// What an option of an overlay names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layers {
    /// Directories that the overlay shows, in order, without `workdir`, which shows nothing. A path
    /// with a backslash is here both ways: the kernel does not unescape `lowerdir+` and `datadir+`.
    pub paths: Vec<String>,
    /// Whether the option ends in a backslash. That joins the comma that a runtime puts after it,
    /// and so the next option, to its value.
    pub is_open: bool,
}

impl Layers {
    /// Reads one entry of a mount's `options`.
    #[must_use]
    pub fn of(option: &str) -> Self {
        let mut layers = Self { paths: Vec::new(), is_open: is_open(option) };
        for part in divide(option, b',') {
            match part.split_once('=') {
                Some(("lowerdir", value)) => divide(value, b':').for_each(|path| layers.add(path)),
                Some(("upperdir" | "lowerdir+" | "datadir+", value)) => layers.add(value),
                _ => {}
            }
        }
        layers
    }

    fn add(&mut self, written: &str) {
        if written.is_empty() {
            return;
        }
        if written.contains('\\') {
            self.paths.push(plain(written));
        }
        self.paths.push(written.to_owned());
    }
}

/// Whether the last backslash has no character after it.
fn is_open(text: &str) -> bool {
    text.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

fn divide(text: &str, at: u8) -> impl Iterator<Item = &str> {
    let mut escaped = false;
    text.split(move |letter: char| {
        let divides = !escaped && letter == char::from(at);
        escaped = !escaped && letter == '\\';
        divides
    })
}

fn plain(written: &str) -> String {
    let mut letters = written.chars();
    let next = || match letters.next()? {
        '\\' => letters.next(),
        letter => Some(letter),
    };
    std::iter::from_fn(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlay_s_directories_are_those_that_the_kernel_takes() {
        for (option, expected) in [
            ("lowerdir=/a:/b", &["/a", "/b"][..]),
            ("lowerdir=/dev", &["/dev"]),
            (r"lowerdir=/a\:b:/c", &["/a:b", r"/a\:b", "/c"]),
            (r"lowerdir=/a\\:/b", &[r"/a\", r"/a\\", "/b"]),
            (r"lowerdir=/a\,b,upperdir=/c\,d", &["/a,b", r"/a\,b", "/c,d", r"/c\,d"]),
            ("lowerdir=/a::/data:/more", &["/a", "/data", "/more"]),
            ("lowerdir=:/a:", &["/a"]),
            ("lowerdir=a/../../b", &["a/../../b"]),
            ("lowerdir+=/a:b", &["/a:b"]),
            ("datadir+=/a,lowerdir+=/b", &["/a", "/b"]),
            ("metacopy=on,lowerdir=/a", &["/a"]),
            ("upperdir=/u=v", &["/u=v"]),
            ("workdir=/w", &[]),
            ("lowerdir", &[]),
            ("lowerdir=", &[]),
            ("xlowerdir=/a", &[]),
            ("ro", &[]),
        ] {
            let found = Layers::of(option);
            assert_eq!(found.paths, expected, "{option}");
            assert!(!found.is_open, "{option}");
        }
        for (option, is_open) in
            [(r"lowerdir=/a\", true), (r"lowerdir=/a\\", false), (r"x\\\", true)]
        {
            assert_eq!(Layers::of(option).is_open, is_open, "{option}");
        }
    }

    #[test]
    fn five_hundred_layers_are_all_found() {
        let all: Vec<String> = (0..500).map(|number| format!("/layers/{number}")).collect();
        assert_eq!(Layers::of(&format!("lowerdir={}", all.join(":"))).paths, all);
    }
}
