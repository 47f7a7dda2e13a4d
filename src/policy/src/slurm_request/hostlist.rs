//! Slurm's lists of names: `node1,gpu[02-04,7]`, `/dev/nvidia[0,2-3]`.

/// Longer lists name more than a node has.
const LONGEST: usize = 4096;

/// The parts of a list, but for commas in brackets.
pub(super) fn entries(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    list.split(move |byte| {
        match byte {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        byte == ',' && depth == 0
    })
}

/// Whether a hostlist such as `node1,gpu[02-04,7]` names a node.
pub(super) fn has(list: &str, node: &str) -> bool {
    entries(list).any(|entry| {
        let Some((prefix, rest)) = entry.split_once('[') else { return entry == node };
        let Some((ranges, suffix)) = rest.split_once(']') else { return false };
        // Several brackets in a name are of large machines without such cards.
        let Some(digits) = node.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(suffix))
        else {
            return false;
        };
        let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse());
        let Some(Ok(own)) = number(digits) else { return false };
        let own: u64 = own;
        ranges.split(',').any(|range| {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            // Numbers of a range are as wide as its first.
            let is_wide =
                digits.len() == from.len() || from.len() < digits.len() && !digits.starts_with('0');
            match (from.parse::<u64>(), to.parse::<u64>()) {
                (Ok(from), Ok(to)) => is_wide && (from..=to).contains(&own),
                _ => false,
            }
        })
    })
}

/// All names of a list, in Slurm's order; a name may have several brackets. `None` where it cannot
/// be read, or names more than `most`.
pub(super) fn names(list: &str, most: usize) -> Option<Vec<String>> {
    if list.len() > LONGEST {
        return None;
    }
    let mut found = Vec::new();
    for entry in entries(list) {
        let (mut begun, mut rest) = (vec![String::new()], entry);
        while let Some((before, behind)) = rest.split_once('[') {
            let (ranges, behind) = behind.split_once(']')?;
            let numbers = numbers(ranges, most)?;
            if begun.len().saturating_mul(numbers.len()) > most {
                return None;
            }
            let longer = |name: &String| {
                numbers.iter().map(|number| format!("{name}{before}{number}")).collect::<Vec<_>>()
            };
            begun = begun.iter().flat_map(longer).collect();
            rest = behind;
        }
        if rest.contains(']') {
            return None;
        }
        found.extend(begun.into_iter().map(|name| name + rest));
        if found.len() > most {
            return None;
        }
    }
    Some(found)
}

/// The numbers between brackets, each as wide as the first of its range.
fn numbers(ranges: &str, most: usize) -> Option<Vec<String>> {
    let number = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<usize>().ok()).flatten()
    };
    let mut found = Vec::new();
    for range in ranges.split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (number(from)?, number(to)?);
        if last < first || last - first >= most {
            return None;
        }
        let width = from.len();
        found.extend((first..=last).map(|number| format!("{number:0width$}")));
        if found.len() > most {
            return None;
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostlist_names_its_nodes() {
        for (list, node, named) in [
            ("node1", "node1", true),
            ("node1", "node11", false),
            ("a,node1", "node1", true),
            ("node[1-3]", "node2", true),
            ("node[1-3]", "node02", false),
            ("node[01-13]", "node02", true),
            ("node[01-13]", "node2", false),
            ("node[1-13]", "node10", true),
            ("node[1,5-6]", "node5", true),
            ("node[1,5-6]", "node4", false),
            ("a,node[1,5-6]-ib,b", "node6-ib", true),
            ("node[x-y]", "node1", false),
            ("node[1", "node1", false),
            ("node[1-3]", "node", false),
        ] {
            assert_eq!(has(list, node), named, "{list} {node}");
        }
    }

    #[test]
    fn a_list_is_read_as_slurm_reads_it_or_not_at_all() {
        for (list, expected) in [
            ("/dev/nvidia0", Some("/dev/nvidia0")),
            ("/dev/nvidia[0-1]", Some("/dev/nvidia0 /dev/nvidia1")),
            ("/dev/nvidia[0,2-3]", Some("/dev/nvidia0 /dev/nvidia2 /dev/nvidia3")),
            ("/dev/nvidia[3,0]", Some("/dev/nvidia3 /dev/nvidia0")),
            ("/dev/nvidia[0-1],/dev/nvidia7", Some("/dev/nvidia0 /dev/nvidia1 /dev/nvidia7")),
            ("a[0-1]b[08-10]c", Some("a0b08c a0b09c a0b10c a1b08c a1b09c a1b10c")),
            ("a[0-7][0-7]", None),
            ("a[0-16]", None),
            ("a[0-9],b[0-9]", None),
            ("a[0-18446744073709551615]", None),
            ("a[0-99999999999999999999999]", None),
            ("a[1-0]", None),
            ("a[]", None),
            ("a[0-]", None),
            ("a[0-1", None),
            ("a0-1]", None),
            ("a[[0-1]]", None),
            ("a[+1]", None),
        ] {
            let found = names(list, 16).map(|names| names.join(" "));
            assert_eq!(found.as_deref(), expected, "{list}");
        }
        assert_eq!(names(&"a".repeat(LONGEST + 1), 16), None);
    }
}
