//! The terminal output.

use std::fmt::Write;

use super::arrange::{Arranged, Cell, Served, Shown, percent, percent_fine, shortened, time};
use super::scale::{self, Rgb};
use super::{Blank, Heatmap};

/// The longest label of a problem, in characters.
const LABEL: usize = 24;
/// The width of the text after the cells: best time and coverage.
const TAIL: usize = 24;
/// The smallest terminal width at which the tail is shown with `Form::Tenth`.
const ROOMY: usize = 72;

/// The format of a cell.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// ` 97`, preceded by `>` if the selection assigns the kernel.
    Percent,
    /// `9` for 90 to 99 percent, `#` for the best kernel.
    Tenth,
}

impl Form {
    fn width(self) -> usize {
        match self {
            Form::Percent => 4,
            Form::Tenth => 1,
        }
    }
}

pub(super) fn draw(heatmap: &Heatmap, width: usize, colour: bool) -> String {
    let shown = &heatmap.arranged;
    let mut text = String::new();
    wrap(&mut text, &heatmap.title, "", width);
    for line in heatmap.caption.iter().chain(&shown.summary()) {
        wrap(&mut text, line, "", width);
    }
    let (rows, columns) = (shown.rows.len(), shown.columns.len());
    if rows == 0 || columns == 0 {
        return text;
    }

    let label = shown.rows.iter().map(|row| row.label.chars().count()).max().unwrap_or(0).min(LABEL);
    // A mark and a space before the cells, a rule and a space after them.
    let room = width - (label + 4);
    let percent = columns * Form::Percent.width();
    let (form, tail) = match percent {
        _ if percent + TAIL <= room => (Form::Percent, TAIL),
        _ if percent <= room => (Form::Percent, 0),
        _ => (Form::Tenth, if width >= ROOMY { TAIL } else { 0 }),
    };
    let room = room - tail;
    let codes: Vec<String> = (0..columns).map(code).collect();
    let per_band = (room / form.width()).max(1);
    for first in (0..columns).step_by(per_band) {
        let band = first..(first + per_band).min(columns);
        text.push('\n');
        for line in heading(&codes, band.clone(), form) {
            let _ = writeln!(text, "{}", format!("{:label$}  {line}", "").trim_end());
        }
        for (position, row) in shown.rows.iter().enumerate() {
            let mark = if matches!(row.served, Served::Uncovered | Served::Hopeless) { '!' } else { ' ' };
            let mut line = format!("{mark}{:>label$} ", shortened(&row.label, label));
            for column in band.clone() {
                let taken = matches!(row.served, Served::By(by, _) if by == column);
                line.push_str(&cell(shown.cell(position, column), form, taken, colour));
                if column + 1 == shown.chosen {
                    line.push('|');
                }
            }
            if tail > 0 {
                // Bands without the rule need a space in its place.
                let rule = usize::from(!band.contains(&shown.chosen.wrapping_sub(1)));
                let _ = write!(line, "{:rule$} {}", "", behind(shown, position, &codes));
            }
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }
    text.push('\n');
    legend(&mut text, shown, form, tail > 0, width, colour);
    for (position, column) in shown.columns.iter().enumerate() {
        let star = if shown.is_chosen(position) { '*' } else { ' ' };
        let mean = column.mean.map(percent_fine).map_or_else(|| "-".to_owned(), |mean| format!("{mean} %"));
        let serves =
            if shown.is_chosen(position) { format!(", assigned {}", column.serves) } else { String::new() };
        let about =
            format!("{star}{:>2}  {}  {mean} of {}{serves}", codes[position], column.name, column.timed);
        wrap(&mut text, &about, "       ", width);
    }
    text
}

/// The short code of a column: `a` to `z`, `aa` to `zz`, and so on.
fn code(mut column: usize) -> String {
    let mut letters = Vec::new();
    loop {
        letters.push(b'a' + (column % 26) as u8);
        if column < 26 {
            break;
        }
        column = column / 26 - 1;
    }
    letters.iter().rev().map(|letter| char::from(*letter)).collect()
}

/// The heading: codes above their columns, written vertically if columns are one character wide.
fn heading(codes: &[String], band: std::ops::Range<usize>, form: Form) -> Vec<String> {
    match form {
        Form::Percent => vec![band.map(|column| format!("{:>4}", codes[column])).collect()],
        Form::Tenth => {
            let longest = codes[band.clone()].iter().map(String::len).max().unwrap_or(0);
            (0..longest)
                .map(|line| {
                    band.clone()
                        .map(|column| {
                            let code = &codes[column];
                            let before = longest - code.len();
                            if line < before { ' ' } else { char::from(code.as_bytes()[line - before]) }
                        })
                        .collect()
                })
                .collect()
        }
    }
}

fn cell(cell: &Cell, form: Form, taken: bool, colour: bool) -> String {
    let (text, ground) = match cell.shown {
        Shown::Efficiency(efficiency) => {
            let text = match form {
                Form::Percent => percent(efficiency).to_string(),
                Form::Tenth if cell.best => "#".to_owned(),
                Form::Tenth => (percent(efficiency) / 10).min(9).to_string(),
            };
            (text, scale::colour(efficiency))
        }
        Shown::Blank(blank) => (blank.letter().to_string(), blank.colour()),
    };
    let text = match form {
        Form::Percent => format!("{}{text:>3}", if taken { '>' } else { ' ' }),
        Form::Tenth => text,
    };
    if colour { painted(&text, ground, cell.best) } else { text }
}

fn painted(text: &str, ground: Rgb, bold: bool) -> String {
    let (Rgb(r, g, b), Rgb(ink, _, _)) = (ground, ground.ink());
    let bold = if bold { "1;" } else { "" };
    format!("\x1b[{bold}38;2;{ink};{ink};{ink};48;2;{r};{g};{b}m{text}\x1b[0m")
}

/// The text after the cells of a problem.
fn behind(shown: &Arranged, row: usize, codes: &[String]) -> String {
    let row = &shown.rows[row];
    let best = row.best_us.map(time).unwrap_or_default();
    let served = match row.served {
        Served::Unasked => String::new(),
        Served::By(column, Some(efficiency)) => format!("{} {}%", codes[column], percent_fine(efficiency)),
        Served::By(column, None) => format!("{} no time", codes[column]),
        Served::Uncovered => "uncovered".to_owned(),
        Served::Hopeless => "none correct".to_owned(),
    };
    format!("{best:>10} {served}")
}

fn legend(text: &mut String, shown: &Arranged, form: Form, tail: bool, width: usize, colour: bool) {
    let marks = match form {
        Form::Percent => "in %, rounded down; 100 is the best kernel.",
        Form::Tenth => "in tenths, rounded down; # is the best kernel.",
    };
    wrap(text, &format!("Cells: efficiency (best known time / time) {marks}"), "", width);
    if tail {
        let served = if shown.chosen > 0 { ", and the assigned kernel" } else { "" };
        wrap(text, &format!("After the cells: best known time{served}."), "", width);
    }
    if shown.chosen > 0 {
        let taken = if form == Form::Percent { "; >: assigned" } else { "" };
        wrap(
            text,
            &format!("Left of | and * in the list: selected{taken}; !: problem not covered."),
            "",
            width,
        );
    } else if shown.rows.iter().any(|row| row.served == Served::Hopeless) {
        wrap(text, "!: no kernel is correct and timed on the problem.", "", width);
    }
    let blanks = shown.blanks();
    for blank in &blanks {
        let letter = blank.letter().to_string();
        let letter = if colour { painted(&letter, Blank::colour(*blank), false) } else { letter };
        let _ = writeln!(text, "  {letter} {}", blank.words());
    }
    wrap(text, "Kernels, with their mean efficiency over the timed problems:", "", width);
}

/// Appends a line, wrapped to the width of the terminal.
fn wrap(text: &mut String, line: &str, indent: &str, width: usize) {
    let mut written = 0;
    // Keeps leading spaces, which align the codes.
    let start = &line[..line.len() - line.trim_start().len()];
    for word in line.split_whitespace() {
        let word = shortened(word, width - indent.len());
        let long = word.chars().count();
        if written > 0 && written + 1 + long <= width {
            text.push(' ');
            written += 1;
        } else if written > 0 {
            text.push('\n');
            text.push_str(indent);
            written = indent.len();
        } else {
            text.push_str(start);
            written = start.len();
        }
        text.push_str(&word);
        written += long;
    }
    text.push('\n');
}
