//! The SVG and PNG output, drawn on the canvas of `charts_rs`. That crate's own heat-map supports one look of a missing
//! cell, no frames, and no slanted labels.

use charts_rs::{Canvas, Color, DEFAULT_FONT_FAMILY, Fill, Polygon, Rect, Text, measure_text_width_family};

use super::arrange::{Arranged, Served, Shown, shortened, time};
use super::scale::{self, Rgb};
use super::{Heatmap, HeatmapError, arrange};

const MARGIN: f32 = 18.0;
const LINE: f32 = 17.0;
const SMALL: f32 = 12.0;
/// The width of an image without cells.
const EMPTY: f32 = 720.0;
/// The gap between selected and other columns.
const GAP: f32 = 8.0;
/// Above this number of rows, column labels are repeated below the cells.
const TALL: usize = 40;
/// The angle of column labels, in degrees from the horizontal.
const LEAN: f32 = 60.0;
/// The largest PNG, in pixels.
const PIXELS: f64 = 12e6;

const STYLE: &str = "text{font-family:Roboto,Helvetica,Arial,sans-serif;fill:#222}\
    .title{font-weight:bold}.quiet{fill:#666}.strong{font-weight:bold}\
    .end{text-anchor:end}.middle{text-anchor:middle}.bad{fill:#c00010;font-weight:bold}\
    .cell{text-anchor:middle}.light{fill:#fff}\
    .frame{fill:none;stroke:#000;stroke-width:2.5}.taken{fill:none;stroke-width:1.4}.swatch{stroke:#999;stroke-width:.6}\
    .warn{fill:#ffe3e3}";

/// The sizes of cells and fonts.
#[derive(Clone, Copy)]
struct Size {
    width: f32,
    height: f32,
    /// The font size in cells; `None` if cells have no text.
    cell: Option<f32>,
    label: f32,
}

impl Size {
    fn of(rows: usize, columns: usize) -> Size {
        if columns <= 30 && rows <= 60 {
            Size { width: 34.0, height: 21.0, cell: Some(11.5), label: 12.0 }
        } else if columns <= 100 && rows <= 500 {
            Size { width: 20.0, height: 14.0, cell: Some(9.0), label: 10.5 }
        } else {
            Size { width: 9.0, height: 9.0, cell: None, label: 8.0 }
        }
    }
}

/// A finished image.
pub(super) struct Picture {
    canvas: Canvas,
}

impl Picture {
    pub fn svg(&self) -> charts_rs::Result<String> {
        self.canvas.svg_with_style(STYLE)
    }
}

pub(super) fn png(heatmap: &Heatmap) -> Result<Vec<u8>, HeatmapError> {
    let picture = draw(heatmap)?;
    let (width, height) = (f64::from(picture.canvas.width), f64::from(picture.canvas.height));
    let finer = (PIXELS / (width * height)).sqrt().min(2.0);
    let width = ((width * finer) as u32).max(1);
    Ok(charts_rs::svg_to_png_with_size(&picture.svg()?, Some(width), None)?)
}

pub(super) fn draw(heatmap: &Heatmap) -> Result<Picture, HeatmapError> {
    let shown = &heatmap.arranged;
    let (rows, columns) = (shown.rows.len(), shown.columns.len());
    if rows == 0 || columns == 0 {
        let height = Sheet::new(EMPTY, 0.0).head(heatmap)?;
        let mut sheet = Sheet::new(EMPTY, height);
        sheet.head(heatmap)?;
        return Ok(Picture { canvas: sheet.canvas });
    }

    let size = Size::of(rows, columns);
    let names: Vec<String> = (0..columns).map(|column| header(shown, column)).collect();
    let problems: Vec<String> = shown.rows.iter().map(|row| problem(&row.served, &row.label)).collect();
    let widest = |texts: &[String], size: f32| -> charts_rs::Result<f32> {
        texts.iter().try_fold(0.0_f32, |most, text| Ok(most.max(width(text, size)?)))
    };
    let left = MARGIN + widest(&problems, size.label)?.max(width("problem M×N×K", size.label)?) + 14.0;
    let mut grid = Grid { shown, size, left, top: 0.0 };
    let right = grid.right();
    let (sin, cos) = LEAN.to_radians().sin_cos();
    let (mut lean_right, mut lean_up) = (right, 0.0_f32);
    for (column, name) in names.iter().enumerate() {
        let long = width(name, size.label)?;
        lean_right = lean_right.max(grid.x(column) + size.width + long * cos);
        lean_up = lean_up.max(long * sin);
    }
    let whole = (lean_right + MARGIN).max(grid.tail()[1] + 150.0).max(760.0);

    let above = |sheet: &mut Sheet| -> Result<f32, HeatmapError> {
        let y = sheet.head(heatmap)?;
        Ok(sheet.legend(shown, size.cell.is_some(), y)? + lean_up + 26.0)
    };
    // Measures the height above the cells on a discarded sheet, because the background is drawn first.
    grid.top = above(&mut Sheet::new(whole, 0.0))?;
    // That many rows do not fit a screen: column labels are repeated below them.
    let again = if rows > TALL { lean_up + 20.0 } else { 0.0 };
    let mut sheet = Sheet::new(whole, grid.bottom() + again + MARGIN);
    above(&mut sheet)?;

    grid.label_columns(&mut sheet, &names);
    for (row, problem) in problems.iter().enumerate() {
        grid.label_row(&mut sheet, row, problem);
        (0..columns).for_each(|column| grid.draw_cell(&mut sheet, row, column));
    }
    if shown.chosen > 0 {
        let wide = grid.x(shown.chosen - 1) + size.width - grid.x(0);
        let high = grid.bottom() - grid.top;
        sheet.rect((grid.x(0) - 2.0, grid.top - 2.0), (wide + 3.0, high + 3.0), "frame");
    }
    Ok(Picture { canvas: sheet.canvas })
}

/// The places of cells and of their labels. There is at least one row and one column.
struct Grid<'a> {
    shown: &'a Arranged,
    size: Size,
    left: f32,
    top: f32,
}

impl Grid<'_> {
    /// The left edge of a column.
    fn x(&self, column: usize) -> f32 {
        let has_gap = (1..self.shown.columns.len()).contains(&self.shown.chosen);
        let gap = if has_gap && !self.shown.is_chosen(column) { GAP } else { 0.0 };
        self.left + column as f32 * self.size.width + gap
    }

    /// The right edge of the last column.
    fn right(&self) -> f32 {
        self.x(self.shown.columns.len() - 1) + self.size.width
    }

    /// The end of the best times, and the begin of what serves each row.
    fn tail(&self) -> [f32; 2] {
        [self.right() + 62.0, self.right() + 76.0]
    }

    /// The upper edge of a row.
    fn y(&self, row: usize) -> f32 {
        self.top + row as f32 * self.size.height
    }

    fn bottom(&self) -> f32 {
        self.y(self.shown.rows.len())
    }

    /// The baseline of text in a row.
    fn baseline(&self, row: usize, font: f32) -> f32 {
        self.y(row) + self.size.height / 2.0 + font * 0.36
    }

    fn label_columns(&self, sheet: &mut Sheet, names: &[String]) {
        let (size, top) = (self.size, self.top);
        for (column, name) in names.iter().enumerate() {
            let middle = self.x(column) + size.width / 2.0;
            let class = if self.shown.is_chosen(column) { "strong" } else { "" };
            sheet.leaning(name, (middle + size.label * 0.3, top - 8.0), -LEAN, size.label, class);
            if self.shown.rows.len() > TALL {
                let below = (middle - size.label * 0.3, self.bottom() + 12.0);
                sheet.leaning(name, below, LEAN, size.label, class);
            }
        }
        let [best, served] = self.tail();
        sheet.text("problem M×N×K", self.left - 8.0, top - 6.0, size.label, "end quiet");
        sheet.text("best", best, top - 6.0, size.label, "end quiet");
        if self.shown.chosen > 0 {
            sheet.text("served", served, top - 6.0, size.label, "quiet");
        }
    }

    fn label_row(&self, sheet: &mut Sheet, position: usize, problem: &str) {
        let (row, size) = (&self.shown.rows[position], self.size.label);
        let (right, baseline) = (self.right(), self.baseline(position, size));
        let none = matches!(row.served, Served::Uncovered | Served::Hopeless);
        if none {
            let wide = right - MARGIN + 6.0;
            sheet.rect((MARGIN - 6.0, self.y(position)), (wide, self.size.height), "warn");
        }
        sheet.text(problem, self.left - 8.0, baseline, size, if none { "end bad" } else { "end" });
        let [best, served] = self.tail();
        if let Some(us) = row.best_us {
            sheet.text(&time(us), best, baseline, size, "end");
        }
        let (words, class) = match row.served {
            Served::Unasked => (String::new(), ""),
            Served::By(_, Some(efficiency)) => (format!("{} %", arrange::percent_fine(efficiency)), ""),
            Served::By(_, None) => ("no time".to_owned(), "bad"),
            Served::Uncovered => ("uncovered".to_owned(), "bad"),
            Served::Hopeless => ("no correct kernel".to_owned(), "bad"),
        };
        sheet.text(&words, served, baseline, size, class);
    }

    fn draw_cell(&self, sheet: &mut Sheet, position: usize, column: usize) {
        let (row, cell) = (&self.shown.rows[position], self.shown.cell(position, column));
        let about = format!("{} on {}: {}", self.shown.columns[column].name, row.label, cell.words());
        let fill = match cell.shown {
            Shown::Efficiency(efficiency) => scale::colour(efficiency),
            Shown::Blank(blank) => blank.colour(),
        };
        let at = (self.x(column), self.y(position));
        let (wide, high) = (self.size.width - 1.0, self.size.height - 1.0);
        sheet.cell(at, (wide, high), fill, Some(about));
        let ink = fill.ink();
        if let Some(font) = self.size.cell {
            let class = if ink == Rgb(0, 0, 0) { "cell" } else { "cell light" };
            sheet.text(&cell.mark(), at.0 + wide / 2.0, self.baseline(position, font) - 0.5, font, class);
        }
        if cell.best {
            sheet.corner((at.0 + wide, at.1), self.size.height * 0.33, ink);
        }
        if matches!(row.served, Served::By(by, _) if by == column) {
            sheet.taken(at, (wide, high), ink);
        }
    }
}

/// The label of a column. A star marks selected columns, so that bold face is not the only mark.
fn header(shown: &Arranged, column: usize) -> String {
    let star = if shown.is_chosen(column) { "* " } else { "" };
    format!("{star}{}", shown.columns[column].label)
}

fn problem(served: &Served, label: &str) -> String {
    match served {
        Served::Uncovered | Served::Hopeless => format!("! {label}"),
        Served::Unasked | Served::By(..) => label.to_owned(),
    }
}

fn width(text: &str, size: f32) -> charts_rs::Result<f32> {
    // Bold text and fallback fonts of a browser are wider than the measured font.
    Ok(measure_text_width_family(DEFAULT_FONT_FAMILY, size, text)?.width() * 1.12)
}

fn colour(Rgb(r, g, b): Rgb) -> Color {
    (r, g, b).into()
}

/// A canvas with the drawing primitives used here.
struct Sheet {
    canvas: Canvas,
}

impl Sheet {
    fn new(width: f32, height: f32) -> Sheet {
        let mut canvas = Canvas::new(width, height);
        canvas.rect(Rect { fill: Some(Fill::Solid(Color::white())), width, height, ..Rect::default() });
        Sheet { canvas }
    }

    /// Draws title, caption and summary. Returns the y coordinate below them.
    fn head(&mut self, heatmap: &Heatmap) -> Result<f32, HeatmapError> {
        let room = self.canvas.width - 2.0 * MARGIN;
        let mut y = MARGIN + 14.0;
        for line in wrapped(&heatmap.title, room, 20.0)? {
            self.text(&line, MARGIN, y, 19.0, "title");
            y += 24.0;
        }
        for (lines, class) in [(&heatmap.caption, "quiet"), (&heatmap.arranged.summary(), "")] {
            for line in lines {
                for line in wrapped(line, room, SMALL)? {
                    self.text(&line, MARGIN, y, SMALL, class);
                    y += LINE;
                }
            }
        }
        Ok(y)
    }

    /// Draws the legend: scale, blank cells and marks. Returns the y coordinate below it.
    fn legend(&mut self, shown: &Arranged, lettered: bool, top: f32) -> Result<f32, HeatmapError> {
        let (mut x, mut y) = (MARGIN, top);
        let text = "efficiency (best known time / time), 0 %";
        self.text(text, x, y + 10.0, SMALL, "");
        x += width(text, SMALL)? + 6.0;
        for step in 0..50 {
            let fill = Some(Fill::Solid(colour(scale::colour((f64::from(step) + 0.5) / 50.0))));
            let (left, top) = (x + step as f32 * 3.0, y);
            self.canvas.rect(Rect { fill, left, top, width: 3.2, height: 13.0, ..Rect::default() });
        }
        x += 155.0;
        self.text("100 %", x, y + 10.0, SMALL, "");
        x += width("100 %", SMALL)? + 22.0;

        let mut place =
            |sheet: &mut Sheet, words: &str, draw: &dyn Fn(&mut Sheet, f32, f32)| -> charts_rs::Result<()> {
                let long = 22.0 + width(words, SMALL)? + 18.0;
                if x + long > sheet.canvas.width - MARGIN && x > MARGIN {
                    (x, y) = (MARGIN, y + 20.0);
                }
                draw(sheet, x, y);
                sheet.text(words, x + 26.0, y + 10.5, SMALL, "");
                x += long + 4.0;
                Ok(())
            };
        for blank in shown.blanks() {
            place(self, blank.words(), &|sheet, x, y| {
                let fill = blank.colour();
                sheet.canvas.rect(Rect {
                    fill: Some(Fill::Solid(colour(fill))),
                    left: x,
                    top: y,
                    width: 20.0,
                    height: 13.0,
                    class: Some("swatch".to_owned()),
                    ..Rect::default()
                });
                if lettered {
                    let class = if fill.ink() == Rgb(0, 0, 0) { "cell" } else { "cell light" };
                    sheet.text(&blank.letter().to_string(), x + 10.0, y + 10.0, 10.0, class);
                }
            })?;
        }
        let best = scale::colour(1.0);
        let box_of = (20.0, 13.0);
        place(self, "best of the row", &|sheet, x, y| {
            sheet.cell((x, y), box_of, best, None);
            sheet.corner((x + box_of.0, y), 5.0, best.ink());
        })?;
        if shown.chosen > 0 {
            place(self, "* and frame: selected", &|sheet, x, y| {
                sheet.rect((x + 1.0, y), (18.0, 13.0), "frame")
            })?;
            place(self, "assigned by the selection", &|sheet, x, y| {
                sheet.cell((x, y), box_of, best, None);
                sheet.taken((x, y), box_of, best.ink());
            })?;
        }
        if shown.rows.iter().any(|row| matches!(row.served, Served::Uncovered | Served::Hopeless)) {
            place(self, "problem not covered", &|sheet, x, y| {
                sheet.rect((x, y), box_of, "warn");
                sheet.text("!", x + 10.0, y + 10.5, SMALL, "middle bad");
            })?;
        }
        Ok(y + 20.0)
    }

    fn text(&mut self, text: &str, x: f32, y: f32, size: f32, class: &str) {
        self.put(text, (x, y), size, class, None);
    }

    fn leaning(&mut self, text: &str, (x, y): (f32, f32), by: f32, size: f32, class: &str) {
        self.put(text, (x, y), size, class, Some(format!("rotate({by} {x:.1} {y:.1})")));
    }

    fn put(&mut self, text: &str, (x, y): (f32, f32), size: f32, class: &str, transform: Option<String>) {
        self.canvas.text(Text {
            text: text.to_owned(),
            font_size: Some(size),
            x: Some(x),
            y: Some(y),
            class: (!class.is_empty()).then(|| class.to_owned()),
            transform,
            ..Text::default()
        });
    }

    fn rect(&mut self, (left, top): (f32, f32), (width, height): (f32, f32), class: &str) {
        self.canvas.rect(Rect { left, top, width, height, class: Some(class.to_owned()), ..Rect::default() });
    }

    fn cell(
        &mut self,
        (left, top): (f32, f32),
        (width, height): (f32, f32),
        fill: Rgb,
        title: Option<String>,
    ) {
        let fill = Some(Fill::Solid(colour(fill)));
        self.canvas.rect(Rect { fill, left, top, width, height, title, ..Rect::default() });
    }

    /// Draws the mark of the fastest kernel of a row.
    fn corner(&mut self, (right, top): (f32, f32), size: f32, ink: Rgb) {
        let points = vec![(right - size, top).into(), (right, top).into(), (right, top + size).into()];
        let fill = Some(colour(ink));
        self.canvas.polygon(Polygon { fill, points, ..Polygon::default() });
    }

    /// Draws the outline of an assigned cell.
    fn taken(&mut self, (left, top): (f32, f32), (width, height): (f32, f32), ink: Rgb) {
        let class = Some("taken".to_owned());
        self.canvas.rect(Rect {
            color: Some(colour(ink)),
            left: left + 1.2,
            top: top + 1.2,
            width: width - 2.4,
            height: height - 2.4,
            class,
            ..Rect::default()
        });
    }
}

/// Wraps a text to lines of width `room`. A word that is wider loses its middle.
fn wrapped(text: &str, room: f32, size: f32) -> charts_rs::Result<Vec<String>> {
    let mut lines = Vec::new();
    let mut line = String::new();
    let most = (room / (size * 0.62)).max(8.0) as usize;
    for word in text.split_whitespace() {
        let word = shortened(word, most);
        let longer = if line.is_empty() { word.clone() } else { format!("{line} {word}") };
        if width(&longer, size)? > room && !line.is_empty() {
            lines.push(std::mem::replace(&mut line, word));
        } else {
            line = longer;
        }
    }
    lines.push(line);
    Ok(lines)
}
