//! A table: below each title stands whose view the column is, where that differs between columns.

/// Space between columns.
const GAP: &str = "  ";

struct Column {
    title: &'static str,
    view: &'static str,
    right: bool,
}

/// Rows of cells below headings; every column is as wide as its widest cell.
pub(crate) struct Columns {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Columns {
    /// Columns by title and view; a title that starts with `>` has its cells on the right.
    pub(crate) fn new(columns: &[(&'static str, &'static str)]) -> Self {
        let column = |&(title, view): &(&'static str, &'static str)| Column {
            title: title.trim_start_matches('>'),
            view,
            right: title.starts_with('>'),
        };
        Self { columns: columns.iter().map(column).collect(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len(), "a row has a cell for each column");
        self.rows.push(cells);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(crate) fn render(&self) -> String {
        let mut heads: Vec<Vec<String>> =
            vec![self.columns.iter().map(|c| c.title.to_owned()).collect()];
        if self.columns.iter().any(|c| !c.view.is_empty()) {
            heads.push(self.columns.iter().map(|c| c.view.to_owned()).collect());
        }
        let lines: Vec<&Vec<String>> = heads.iter().chain(&self.rows).collect();
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|i| lines.iter().filter_map(|l| l.get(i)).map(|c| width(c)).max().unwrap_or(0))
            .collect();
        let mut text = String::new();
        for cells in lines {
            let mut line = String::new();
            for ((cell, column), width_) in cells.iter().zip(&self.columns).zip(&widths) {
                let padding = " ".repeat(width_.saturating_sub(width(cell)));
                let (before, after) =
                    if column.right { (padding.as_str(), "") } else { ("", padding.as_str()) };
                line.push_str(before);
                line.push_str(cell);
                line.push_str(after);
                line.push_str(GAP);
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

fn width(cell: &str) -> usize {
    cell.chars().count()
}
