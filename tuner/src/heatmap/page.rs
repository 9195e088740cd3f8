//! The HTML page. `plotly` draws the plot; an escaping template renders the text around it.

use minijinja::{Environment, context};
use plotly::color::NamedColor;
use plotly::common::{
    AxisSide, ColorScale, ColorScaleElement, Font, HoverInfo, Label, Marker, MarkerSymbol, Mode,
};
use plotly::layout::{Axis, DragMode, HoverMode, Margin, Shape, ShapeLine, ShapeType};
use plotly::{Configuration, HeatMap, Layout, Plot, Scatter, Trace};
use serde::Serialize;

use super::arrange::{Arranged, Cell, Row, Served, Shown, percent_fine, time};
use super::scale::{self, Rgb};
use super::{Blank, Heatmap, HeatmapError};

/// The name of the template. Its extension enables HTML escaping.
const PAGE: &str = "page.html";
/// Above this number of cells, cells have no text, because browsers become too slow.
const WRITTEN: usize = 20_000;

pub(super) fn draw(heatmap: &Heatmap) -> Result<String, HeatmapError> {
    let shown = &heatmap.arranged;
    let plot = (!shown.rows.is_empty() && !shown.columns.is_empty()).then(|| plot(shown));
    let (plot, width, height) = plot.unwrap_or_default();
    let swatch = |colour: Rgb| context! { ground => colour.hex(), ink => colour.ink().hex() };
    let mut environment = Environment::new();
    environment.add_template(PAGE, include_str!("page.html.j2"))?;
    let page = environment.get_template(PAGE)?.render(context! {
        title => heatmap.title.as_str(),
        caption => heatmap.caption.clone(),
        summary => shown.summary(),
        library => if plot.is_empty() { String::new() } else { library() },
        plot,
        width,
        height,
        scale => scale::STOPS.map(Rgb::hex).join(","),
        best => swatch(scale::colour(1.0)),
        blanks => shown.blanks().into_iter().map(|blank| context! {
            letter => blank.letter().to_string(),
            words => blank.words(),
            ..swatch(blank.colour())
        }).collect::<Vec<_>>(),
        selected => shown.chosen > 0,
        unserved => shown.rows.iter().filter_map(unserved).collect::<Vec<_>>(),
        kernels => shown.columns.iter().enumerate().map(|(position, column)| context! {
            chosen => shown.is_chosen(position),
            label => column.label.as_str(),
            name => column.name.as_str(),
            id => column.id.as_str(),
            generator => column.generator.as_str(),
            target => column.target.as_str(),
            parameters => column.parameters.as_str(),
            mean => column.mean.map(percent_fine),
            timed => column.timed,
            serves => column.serves,
        }).collect::<Vec<_>>(),
    })?;
    Ok(page)
}

/// The text for a problem that is not covered.
fn unserved(row: &Row) -> Option<String> {
    match row.served {
        Served::Uncovered => Some(format!("{}: no selected kernel supports it", row.label)),
        Served::Hopeless => Some(format!("{}: no kernel is correct and timed", row.label)),
        Served::Unasked | Served::By(..) => None,
    }
}

/// The plot as an HTML fragment, with its width and height.
fn plot(shown: &Arranged) -> (String, usize, usize) {
    let (rows, columns) = (shown.rows.len(), shown.columns.len());
    let (wide, high, font) = if columns <= 30 && rows <= 60 { (36, 22, 12) } else { (24, 16, 10) };
    let longest = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or(0) + 2;
    let across = longest(&mut shown.columns.iter().map(|column| column.label.chars().count()));
    let down = longest(&mut shown.rows.iter().map(|row| row.label.chars().count()));
    let (left, top, right) = (down * 8 + 30, across * 6 + 50, 60.max(across * 4));
    let (width, height) = (left + columns * wide + right, top + rows * high + 30);

    let places = |count: usize| (0..count).map(|at| at as f64).collect::<Vec<f64>>();
    let axis = |count: usize, texts: Vec<String>| {
        Axis::new()
            .tick_values(places(count))
            .tick_text(texts)
            .tick_font(Font::new().size(font))
            .show_grid(false)
            .zero_line(false)
    };
    let end = |count: usize| count as f64 - 0.5;
    let names = (0..columns).map(|column| kernel_label(shown, column)).collect();
    let problems = shown.rows.iter().map(problem_label).collect();
    let layout = Layout::new()
        .auto_size(false)
        .width(width)
        .height(height)
        .margin(Margin::new().left(left).right(right).top(top).bottom(30))
        .plot_background_color(NamedColor::White)
        .hover_mode(HoverMode::Closest)
        .hover_label(Label::new().align("left").font(Font::new().size(13)))
        .drag_mode(DragMode::Zoom)
        .show_legend(false)
        .x_axis(axis(columns, names).side(AxisSide::Top).tick_angle(-60.0).range(vec![-0.5, end(columns)]))
        .y_axis(axis(rows, problems).range(vec![end(rows), -0.5]))
        .shapes(shapes(shown));

    let mut plot = Plot::new();
    plot.set_configuration(
        Configuration::new().typeset_math(false).display_logo(false).responsive(false).scroll_zoom(false),
    );
    plot.set_layout(layout);
    let written = rows * columns <= WRITTEN;
    for cells in [times(shown), blanks(shown)] {
        let text = written.then_some("%{text}");
        plot.add_trace(Box::new(Cells { cells, text, font: Font::new().size(font) }));
    }
    plot.add_trace(best(shown));
    (plot.to_inline_html(Some("heatmap")), width, height)
}

/// A heat-map trace with text in its cells, which the `plotly` crate does not support.
#[derive(Clone, Serialize)]
struct Cells {
    #[serde(flatten)]
    cells: Box<HeatMap<f64, f64, Vec<Option<f64>>>>,
    #[serde(rename = "texttemplate", skip_serializing_if = "Option::is_none")]
    text: Option<&'static str>,
    #[serde(rename = "textfont")]
    font: Font,
}

impl Trace for Cells {
    fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The trace of cells with an efficiency.
fn times(shown: &Arranged) -> Box<HeatMap<f64, f64, Vec<Option<f64>>>> {
    let last = (scale::STOPS.len() - 1) as f64;
    let stops = scale::STOPS.iter().enumerate();
    let stops = stops.map(|(at, colour)| ColorScaleElement(at as f64 / last, colour.hex())).collect();
    cells(shown, Cell::efficiency)
        .zmin(0.0)
        .zmax(1.0)
        .color_scale(ColorScale::Vector(stops))
        .show_scale(false)
}

/// The trace of blank cells. A cell's value is the index of its kind, which selects the colour.
fn blanks(shown: &Arranged) -> Box<HeatMap<f64, f64, Vec<Option<f64>>>> {
    let kinds = shown.blanks();
    let count = kinds.len().max(1) as f64;
    let stops = kinds.iter().enumerate().flat_map(|(at, blank)| {
        [at, at + 1].map(|end| ColorScaleElement(end as f64 / count, blank.colour().hex()))
    });
    let at = |cell: &Cell| match cell.shown {
        Shown::Blank(blank) => kinds.iter().position(|kind: &Blank| *kind == blank).map(|at| at as f64),
        Shown::Efficiency(_) => None,
    };
    cells(shown, at)
        .zmin(-0.5)
        .zmax(count - 0.5)
        .color_scale(ColorScale::Vector(stops.collect()))
        .show_scale(false)
}

fn cells(shown: &Arranged, value: impl Fn(&Cell) -> Option<f64>) -> Box<HeatMap<f64, f64, Vec<Option<f64>>>> {
    let (rows, columns) = (shown.rows.len(), shown.columns.len());
    let values = |row: usize| (0..columns).map(|column| value(shown.cell(row, column))).collect::<Vec<_>>();
    let texts = |of: &dyn Fn(usize, usize) -> String| -> Vec<Vec<String>> {
        let text = |row: usize, column: usize| match value(shown.cell(row, column)) {
            Some(_) => of(row, column),
            None => String::new(),
        };
        (0..rows).map(|row| (0..columns).map(|column| text(row, column)).collect()).collect()
    };
    HeatMap::new_z((0..rows).map(values).collect())
        .text_matrix(texts(&|row, column| shown.cell(row, column).mark()))
        .hover_text_matrix(texts(&|row, column| about(shown, row, column)))
        .hover_info(HoverInfo::Text)
        .hover_on_gaps(false)
        .x_gap(1)
        .y_gap(1)
}

/// The tooltip of a cell.
fn about(shown: &Arranged, row: usize, column: usize) -> String {
    let (problem, kernel, cell) = (&shown.rows[row], &shown.columns[column], shown.cell(row, column));
    let takes = matches!(problem.served, Served::By(by, _) if by == column);
    let chosen = match (shown.is_chosen(column), takes) {
        (_, true) => "selected and assigned to this problem",
        (true, false) => "selected",
        (false, false) => "not selected",
    };
    let best = problem.best_us.map(|us| format!(", best known {}", time(us))).unwrap_or_default();
    let mut lines = vec![
        format!("<b>{}</b>, weight {}{best}", problem.label, problem.weight),
        escaped(&kernel.name),
        format!("<b>{}</b>", cell.words()),
        format!("state {}; {chosen}", cell.state()),
    ];
    for line in broken(&kernel.parameters, 80) {
        lines.push(escaped(&line));
    }
    lines.join("<br>")
}

/// Breaks a text into lines of at most `most` characters, if its words allow.
fn broken(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Escapes a text, because plotly interprets texts as a subset of HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn kernel_label(shown: &Arranged, column: usize) -> String {
    let label = escaped(&shown.columns[column].label);
    if shown.is_chosen(column) { format!("<b>* {label}</b>") } else { label }
}

fn problem_label(row: &Row) -> String {
    match row.served {
        Served::Uncovered | Served::Hopeless => {
            format!("<span style=\"color:#c00010\"><b>! {}</b></span> ", row.label)
        }
        Served::Unasked | Served::By(..) => format!("{} ", row.label),
    }
}

/// The frame of the selected columns, and the outlines of assigned cells.
fn shapes(shown: &Arranged) -> Vec<Shape> {
    let rect = |x: [f64; 2], y: [f64; 2], colour: Rgb, width: f64| {
        Shape::new()
            .shape_type(ShapeType::Rect)
            .x0(x[0])
            .x1(x[1])
            .y0(y[0])
            .y1(y[1])
            .line(ShapeLine::new().color(colour.hex()).width(width))
    };
    let mut shapes = Vec::new();
    for (row, at) in shown.rows.iter().zip(0..) {
        if let Served::By(column, efficiency) = row.served {
            let (x, y) = (column as f64, f64::from(at));
            let ink = scale::colour(efficiency.unwrap_or(1.0)).ink();
            shapes.push(rect([x - 0.42, x + 0.42], [y - 0.4, y + 0.4], ink, 1.5));
        }
    }
    if shown.chosen > 0 {
        let ends = |count: usize| [-0.5, count as f64 - 0.5];
        shapes.push(rect(ends(shown.chosen), ends(shown.rows.len()), Rgb(0, 0, 0), 3.0));
    }
    shapes
}

/// The marker of the best cells of each row.
fn best(shown: &Arranged) -> Box<dyn Trace> {
    let (mut xs, mut ys) = (Vec::new(), Vec::new());
    for row in 0..shown.rows.len() {
        for column in (0..shown.columns.len()).filter(|column| shown.cell(row, *column).best) {
            xs.push(column as f64 + 0.36);
            ys.push(row as f64 - 0.3);
        }
    }
    Scatter::new(xs, ys)
        .mode(Mode::Markers)
        .marker(Marker::new().symbol(MarkerSymbol::TriangleNE).size(5).color(NamedColor::Black))
        .hover_info(HoverInfo::Skip)
}

/// The plotly script. The crate bundles it with MathJax, which would interpret names that contain `$`, so the bundle is
/// cut at the end of the first script.
fn library() -> String {
    let both = Plot::offline_js_sources();
    let end = "</script>";
    both.find(end).map_or(String::new(), |at| both[..at + end.len()].to_owned())
}
