//! Bars of time ratios: one group of bars per case, on a logarithmic axis with a line at 1.
//!
//! A ratio that is missing because the measurement failed is drawn as a word, never as a short bar. Output is
//! deterministic.

use charts_rs::{Canvas, Color, DEFAULT_FONT_FAMILY, Fill, Line, Rect, Text, measure_text_width_family};

const MARGIN: f32 = 18.0;
const TITLE: f32 = 19.0;
const SMALL: f32 = 12.0;
/// The height of a bar, and the gap between groups.
const BAR: f32 = 10.0;
const GAP: f32 = 7.0;
/// The width of the axis, and of the figures to its right.
const AXIS: f32 = 420.0;
const FIGURES: f32 = 70.0;

const STYLE: &str = "text{font-family:Roboto,Helvetica,Arial,sans-serif;fill:#222}\
    .title{font-weight:bold}.quiet{fill:#666}.strong{font-weight:bold}.end{text-anchor:end}\
    .middle{text-anchor:middle}.bad{fill:#c00010;font-weight:bold}";

/// The colours of series, which differ in lightness too.
const COLOURS: [(u8, u8, u8); 4] =
    [(0x9a, 0xa5, 0xb1), (0xe0, 0x8e, 0x2b), (0x1f, 0x5f, 0xa8), (0x6b, 0x3f, 0x8f)];

/// A figure with bars.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// The title.
    pub title: String,
    /// Lines below the title.
    pub caption: Vec<String>,
    /// The names of the bars of each group.
    pub series: Vec<String>,
    /// The rows of the figure.
    pub rows: Vec<BarRow>,
}

/// A row of the figure.
#[derive(Clone, Debug, PartialEq)]
pub enum BarRow {
    /// The heading of the groups below it.
    Heading(String),
    /// A group of bars.
    Group {
        /// The label.
        label: String,
        /// One entry for each series.
        values: Vec<BarValue>,
    },
}

/// The value of a bar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BarValue {
    /// A positive ratio.
    Ratio(f64),
    /// It was measured and failed.
    Failed,
    /// It was not measured.
    None,
}

impl Bars {
    /// Draws an SVG image.
    ///
    /// # Errors
    /// If the image library fails.
    pub fn svg(&self) -> charts_rs::Result<String> {
        let scale = Scale::of(&self.rows);
        let mut left = 0f32;
        for row in &self.rows {
            if let BarRow::Group { label, .. } = row {
                left = left.max(width(label, SMALL)?);
            }
        }
        let left = MARGIN + left + 12.0;
        let head = MARGIN + 24.0 + self.caption.len() as f32 * 17.0 + 24.0;
        let group = BAR * self.series.len() as f32 + GAP;
        let height_of = |row: &BarRow| if matches!(row, BarRow::Heading(_)) { 26.0 } else { group };
        let body: f32 = self.rows.iter().map(height_of).sum();
        let whole = (left + AXIS + FIGURES + MARGIN).max(640.0);
        let (top, bottom) = (head + 20.0, head + 20.0 + body);
        let mut sheet = Sheet(Canvas::new(whole, bottom + MARGIN));
        sheet.rect((0.0, 0.0), (whole, bottom + MARGIN), (255, 255, 255));
        sheet.text(&self.title, (MARGIN, MARGIN + 14.0), TITLE, "title");
        for (number, line) in self.caption.iter().enumerate() {
            sheet.text(line, (MARGIN, MARGIN + 38.0 + number as f32 * 17.0), SMALL, "quiet");
        }
        let mut x = MARGIN;
        for (series, name) in self.series.iter().enumerate() {
            sheet.rect((x, head - 20.0), (16.0, BAR), colour(series));
            sheet.text(name, (x + 22.0, head - 11.0), SMALL, "");
            x += 22.0 + width(name, SMALL)? + 20.0;
        }
        for (ratio, label) in scale.ticks() {
            let x = left + scale.place(ratio);
            let ink = if ratio == 1.0 { (0x22, 0x22, 0x22) } else { (0xdd, 0xdd, 0xdd) };
            sheet.line((x, top - 4.0), (x, bottom), ink);
            sheet.text(&label, (x, top - 8.0), SMALL, "middle quiet");
        }
        let mut y = top;
        for row in &self.rows {
            match row {
                BarRow::Heading(text) => sheet.text(text, (MARGIN, y + 18.0), SMALL + 1.0, "strong"),
                BarRow::Group { label, values } => {
                    sheet.text(label, (left - 8.0, y + group / 2.0 + 2.0), SMALL, "end");
                    for (series, value) in values.iter().enumerate() {
                        sheet.bar(&scale, (left, y + GAP / 2.0 + series as f32 * BAR), series, *value);
                    }
                }
            }
            y += height_of(row);
        }
        sheet.0.svg_with_style(STYLE)
    }

    /// Draws a self-contained HTML page, which loads nothing.
    ///
    /// # Errors
    /// If the image library fails.
    pub fn html(&self) -> charts_rs::Result<String> {
        let svg = self.svg()?;
        Ok(format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
             <title>Ratios of times</title>\n</head>\n<body>\n{svg}\n</body>\n</html>\n"
        ))
    }
}

/// A logarithmic axis.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    /// The axis from a power of two to a power of two that contains every ratio and 1.
    fn of(rows: &[BarRow]) -> Scale {
        let groups = rows.iter().filter_map(|row| match row {
            BarRow::Group { values, .. } => Some(values),
            BarRow::Heading(_) => None,
        });
        let logs = groups.flatten().filter_map(|value| match value {
            BarValue::Ratio(ratio) if *ratio > 0.0 && ratio.is_finite() => Some(ratio.log2()),
            _ => None,
        });
        let (low, high) = logs.fold((0f64, 0f64), |(low, high), log| (low.min(log), high.max(log)));
        Scale { low: low.floor().clamp(-10.0, -1.0), high: high.ceil().clamp(1.0, 10.0) }
    }

    fn place(&self, ratio: f64) -> f32 {
        let log = ratio.log2().clamp(self.low, self.high);
        ((log - self.low) / (self.high - self.low)) as f32 * AXIS
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        let label = |power: i32| match power {
            0.. => format!("{}x", 1u32 << power),
            _ => format!("1/{}x", 1u32 << -power),
        };
        (self.low as i32..=self.high as i32).map(|power| (f64::from(power).exp2(), label(power))).collect()
    }
}

fn colour(series: usize) -> (u8, u8, u8) {
    COLOURS[series % COLOURS.len()]
}

fn width(text: &str, size: f32) -> charts_rs::Result<f32> {
    // Bold text and fallback fonts of a browser are wider than the measured font.
    Ok(measure_text_width_family(DEFAULT_FONT_FAMILY, size, text)?.width() * 1.12)
}

/// A canvas with the drawing primitives used here.
struct Sheet(Canvas);

impl Sheet {
    fn bar(&mut self, scale: &Scale, (left, y): (f32, f32), series: usize, value: BarValue) {
        let one = left + scale.place(1.0);
        let baseline = y + BAR - 1.5;
        match value {
            BarValue::None => {}
            BarValue::Failed => self.text("failed", (one + 4.0, baseline), BAR, "bad"),
            BarValue::Ratio(ratio) => {
                let end = left + scale.place(ratio);
                let size = ((end - one).abs().max(1.0), BAR - 1.5);
                self.rect((one.min(end), y), size, colour(series));
                self.text(&format!("{ratio:.2}x"), (one.max(end) + 4.0, baseline), BAR, "quiet");
            }
        }
    }

    fn rect(&mut self, (left, top): (f32, f32), (width, height): (f32, f32), fill: (u8, u8, u8)) {
        let fill = Some(Fill::Solid(Color::from(fill)));
        self.0.rect(Rect { fill, left, top, width, height, ..Rect::default() });
    }

    fn line(&mut self, (left, top): (f32, f32), (right, bottom): (f32, f32), ink: (u8, u8, u8)) {
        let color = Some(Color::from(ink));
        self.0.line(Line { color, stroke_width: 1.0, left, top, right, bottom, ..Line::default() });
    }

    fn text(&mut self, text: &str, (x, y): (f32, f32), size: f32, class: &str) {
        self.0.text(Text {
            text: text.to_owned(),
            font_size: Some(size),
            x: Some(x),
            y: Some(y),
            class: (!class.is_empty()).then(|| class.to_owned()),
            ..Text::default()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars() -> Bars {
        let group = |label: &str, values: [BarValue; 2]| BarRow::Group {
            label: label.to_owned(),
            values: values.to_vec(),
        };
        Bars {
            title: "Time <of> peers".to_owned(),
            caption: vec!["a GPU".to_owned()],
            series: vec!["eager".to_owned(), "compile".to_owned()],
            rows: vec![
                BarRow::Heading("softmax".to_owned()),
                group("forward M=1", [BarValue::Ratio(3.0), BarValue::Failed]),
                group("forward M=2", [BarValue::Ratio(0.8), BarValue::None]),
            ],
        }
    }

    #[test]
    fn the_axis_has_every_ratio_and_one() {
        let scale = Scale::of(&bars().rows);
        let labels: Vec<String> = scale.ticks().into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels, ["1/2x", "1x", "2x", "4x"]);
        assert_eq!(
            [0.5, 1.0, 4.0, 1e9, 0.0].map(|ratio| scale.place(ratio)),
            [0.0, AXIS / 3.0, AXIS, AXIS, 0.0]
        );
        let none = Scale::of(&[]);
        assert_eq!((none.low, none.high), (-1.0, 1.0));
    }

    #[test]
    fn a_failure_is_a_word_and_texts_are_escaped() {
        let svg = bars().svg().expect("an image");
        for word in ["Time &lt;of&gt; peers", "softmax", "forward M=1", "3.00x", "0.80x", "failed"] {
            assert!(svg.contains(word), "{word}: {svg}");
        }
        assert_eq!(svg.matches("failed").count(), 1);
        assert_eq!(svg, bars().svg().expect("an image"), "the same bytes");
        let html = bars().html().expect("a page");
        assert!(html.contains("<svg") && !html.contains("<script") && !html.contains("src=\""), "{html}");
    }
}
