//! A picture of a matrix: problems down, kernels across, the colour of a cell how near a kernel comes to the best that is
//! known for its problem.
//!
//! A [`Heatmap`] is made once, from a matrix and a selection, and drawn as a page for a browser ([`Heatmap::html`]), as an
//! image ([`Heatmap::svg`], [`Heatmap::png`]) or as text ([`Heatmap::terminal`]). The same values give the same bytes.
//!
//! What has no time is never drawn as slow: each [`Blank`] has a letter and a colour that the scale of times does not have.
//! Percentages are rounded down, so `100` is written of the best only.
//!
//! Names come from files and are put where they cannot be taken for anything else: they are escaped for the page and the
//! image, and characters that control a terminal or turn the direction of writing are replaced.

mod arrange;
mod blank;
mod page;
mod picture;
mod scale;
mod text;

use crate::matrix::Matrix;

pub use blank::Blank;

/// A matrix, what was chosen of it, and what its picture is called.
#[derive(Clone, Debug)]
pub struct Heatmap {
    title: String,
    caption: Vec<String>,
    arranged: arrange::Arranged,
}

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
pub enum HeatmapError {
    /// The caller's matrix has another number of cells than its rows and columns need.
    #[error("the matrix has {found} cells; its {problems} problems and {kernels} kernels need {needed}")]
    Cells {
        /// How many cells there are.
        found: usize,
        /// How many there must be.
        needed: usize,
        /// Rows.
        problems: usize,
        /// Columns.
        kernels: usize,
    },
    /// The caller names a kernel that the matrix does not have.
    #[error(
        "kernel {kernel} is chosen, but the matrix has {kernels}: take the selection that was made of this matrix"
    )]
    Chosen {
        /// The position that is named.
        kernel: usize,
        /// How many kernels there are.
        kernels: usize,
    },
    /// The caller assigns kernels to another number of problems than there are.
    #[error(
        "{found} problems have an assignment, but the matrix has {problems}: take the selection that was made of it"
    )]
    Assignments {
        /// How many assignments there are.
        found: usize,
        /// How many problems there are.
        problems: usize,
    },
    /// The caller assigns a kernel that is not chosen.
    #[error(
        "problem {problem} is assigned kernel {kernel}, which is not among the chosen: a selection assigns only those"
    )]
    Assigned {
        /// The problem's position.
        problem: usize,
        /// The kernel's position.
        kernel: usize,
    },
    /// The library that draws images failed.
    #[error("the image could not be drawn; the page and the text do not need what failed: {0}")]
    Image(#[from] charts_rs::Error),
    /// The page's template failed: a bug of Fourfold.
    #[error("a bug: the page could not be filled in: {0}")]
    Page(#[from] minijinja::Error),
}

impl Heatmap {
    /// A picture of `matrix`. `chosen` are positions of kernels, and `assignment` says for each problem which of them
    /// serves it, `None` where none does. With nothing chosen there is no selection to show, and every assignment must be
    /// `None` or `assignment` empty. The caption says where and how the times were taken; each of its lines is shown as
    /// one.
    ///
    /// # Errors
    /// Where the arguments do not belong together.
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

    /// A page for a browser that shows what is under the pointer. It holds all that it needs and loads nothing.
    ///
    /// # Errors
    /// Only by a bug.
    pub fn html(&self) -> Result<String, HeatmapError> {
        page::draw(self)
    }

    /// An image as SVG.
    ///
    /// # Errors
    /// When the library that draws it fails.
    pub fn svg(&self) -> Result<String, HeatmapError> {
        Ok(picture::draw(self)?.svg()?)
    }

    /// The image as PNG, twice as fine as the SVG where that is not too large.
    ///
    /// # Errors
    /// When the library that draws it fails.
    pub fn png(&self) -> Result<Vec<u8>, HeatmapError> {
        picture::png(self)
    }

    /// Text for a terminal of `width` columns, of which at least [`NARROWEST`] are used; with colours, or without them and
    /// saying the same.
    pub fn terminal(&self, width: usize, colour: bool) -> String {
        text::draw(self, width.max(NARROWEST), colour)
    }
}

/// The fewest columns of a terminal that a heat-map is written for.
pub const NARROWEST: usize = 40;
