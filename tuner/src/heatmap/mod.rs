//! Heat-maps of a matrix: one row per problem, one column per kernel. The colour of a cell is the kernel's efficiency,
//! the best known time of the problem divided by the kernel's time.
//!
//! A [`Heatmap`] is created from a matrix and a selection. It can be drawn as an HTML page ([`Heatmap::html`]), an
//! image ([`Heatmap::svg`], [`Heatmap::png`]) or terminal text ([`Heatmap::terminal`]). Output is deterministic.
//!
//! A missing time is never drawn as a slow one: each [`Blank`] has a letter, and a colour outside the scale.
//! Percentages are rounded down, so only the best kernel shows `100`.
//!
//! Names come from files and are not trusted. HTML and SVG output escapes them, and characters that control a terminal
//! or change the text direction are replaced.

mod arrange;
mod blank;
mod page;
mod picture;
mod scale;
mod text;

use crate::matrix::Matrix;

pub use blank::Blank;

/// A matrix with a selection, a title and a caption, ready to be drawn.
#[derive(Clone, Debug)]
pub struct Heatmap {
    title: String,
    caption: Vec<String>,
    arranged: arrange::Arranged,
}

/// An error from creating or drawing a heat-map.
#[derive(Debug, thiserror::Error)]
pub enum HeatmapError {
    /// The number of cells does not fit the rows and columns. The caller is at fault.
    #[error("the matrix has {found} cells; its {problems} problems and {kernels} kernels need {needed}")]
    Cells {
        /// Number of cells.
        found: usize,
        /// Number of cells needed.
        needed: usize,
        /// Number of rows.
        problems: usize,
        /// Number of columns.
        kernels: usize,
    },
    /// A selected kernel is not in the matrix. The caller is at fault.
    #[error(
        "kernel {kernel} is selected, but the matrix has {kernels} kernels; use a selection from this matrix"
    )]
    Chosen {
        /// The selected position.
        kernel: usize,
        /// Number of kernels.
        kernels: usize,
    },
    /// The number of assignments does not fit the number of problems. The caller is at fault.
    #[error(
        "{found} problems have an assignment, but the matrix has {problems}; use a selection from this matrix"
    )]
    Assignments {
        /// Number of assignments.
        found: usize,
        /// Number of problems.
        problems: usize,
    },
    /// A problem is assigned a kernel that is not selected. The caller is at fault.
    #[error("problem {problem} is assigned kernel {kernel}, which is not selected")]
    Assigned {
        /// The problem's position.
        problem: usize,
        /// The kernel's position.
        kernel: usize,
    },
    /// The image library failed.
    #[error("the image cannot be drawn; use the HTML or terminal output instead: {0}")]
    Image(#[from] charts_rs::Error),
    /// The page's template failed: a bug in Fourfold.
    #[error("the HTML template failed, a bug in Fourfold: {0}")]
    Page(#[from] minijinja::Error),
}

impl Heatmap {
    /// Creates a heat-map of `matrix`.
    ///
    /// - `chosen`: positions of the selected kernels; empty without a selection.
    /// - `assignment`: the selected kernel of each problem, `None` if no selected kernel supports it. May be empty if
    ///   `chosen` is.
    /// - `caption`: origin of the times, shown line by line.
    ///
    /// # Errors
    /// If the arguments do not fit each other.
    pub fn new(
        matrix: &Matrix,
        chosen: &[usize],
        assignment: &[Option<usize>],
        title: &str,
        caption: &str,
    ) -> Result<Heatmap, HeatmapError> {
        let (problems, kernels) = (matrix.problems.len(), matrix.kernels.len());
        let needed = problems * kernels;
        let found = matrix.cells.len();
        if found != needed {
            return Err(HeatmapError::Cells { found, needed, problems, kernels });
        }
        if let Some(&kernel) = chosen.iter().find(|kernel| **kernel >= kernels) {
            return Err(HeatmapError::Chosen { kernel, kernels });
        }
        if assignment.len() != problems && !(chosen.is_empty() && assignment.is_empty()) {
            return Err(HeatmapError::Assignments { found: assignment.len(), problems });
        }
        for (problem, kernel) in assignment.iter().enumerate() {
            if let Some(kernel) = *kernel
                && !chosen.contains(&kernel)
            {
                return Err(HeatmapError::Assigned { problem, kernel });
            }
        }
        Ok(Heatmap {
            title: arrange::plain(title),
            caption: caption.lines().map(arrange::plain).filter(|line| !line.trim().is_empty()).collect(),
            arranged: arrange::Arranged::new(matrix, chosen, assignment),
        })
    }

    /// Draws an HTML page with tooltips. The page is self-contained and loads nothing.
    ///
    /// # Errors
    /// Only by a bug in Fourfold.
    pub fn html(&self) -> Result<String, HeatmapError> {
        page::draw(self)
    }

    /// Draws an SVG image.
    ///
    /// # Errors
    /// If the image library fails.
    pub fn svg(&self) -> Result<String, HeatmapError> {
        Ok(picture::draw(self)?.svg()?)
    }

    /// Draws a PNG image at up to twice the resolution of the SVG, limited to 12 million pixels.
    ///
    /// # Errors
    /// If the image library fails.
    pub fn png(&self) -> Result<Vec<u8>, HeatmapError> {
        picture::png(self)
    }

    /// Draws text for a terminal of `width` columns, at least [`NARROWEST`]. Colours are optional and add no
    /// information.
    pub fn terminal(&self, width: usize, colour: bool) -> String {
        text::draw(self, width.max(NARROWEST), colour)
    }
}

/// The smallest supported width of a terminal, in columns.
pub const NARROWEST: usize = 40;
