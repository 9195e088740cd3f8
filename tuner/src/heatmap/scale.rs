//! The colour scale of efficiencies.

/// A colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rgb(pub u8, pub u8, pub u8);

/// The colours from 0 to 1 in equal steps. Light is fast. The order is visible in gray scale and to the colour-blind.
pub(super) const STOPS: [Rgb; 6] = [
    Rgb(0x3b, 0x0f, 0x55),
    Rgb(0x41, 0x44, 0x87),
    Rgb(0x2a, 0x78, 0x8e),
    Rgb(0x22, 0xa8, 0x84),
    Rgb(0x7a, 0xd1, 0x51),
    Rgb(0xfd, 0xe7, 0x25),
];

/// The colour of an efficiency, clamped to the ends of the scale.
pub(super) fn colour(efficiency: f64) -> Rgb {
    let last = STOPS.len() - 1;
    let at = efficiency.clamp(0.0, 1.0) * last as f64;
    let below = (at as usize).min(last - 1);
    let share = at - below as f64;
    let (Rgb(r0, g0, b0), Rgb(r1, g1, b1)) = (STOPS[below], STOPS[below + 1]);
    let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * share).round() as u8;
    Rgb(mix(r0, r1), mix(g0, g1), mix(b0, b1))
}

impl Rgb {
    /// The legible text colour on this background: black or white.
    pub(super) fn ink(self) -> Rgb {
        let Rgb(r, g, b) = self;
        let light = 299 * u32::from(r) + 587 * u32::from(g) + 114 * u32::from(b);
        if light > 128_000 { Rgb(0, 0, 0) } else { Rgb(0xff, 0xff, 0xff) }
    }

    /// The CSS notation.
    pub(super) fn hex(self) -> String {
        let Rgb(r, g, b) = self;
        format!("#{r:02x}{g:02x}{b:02x}")
    }
}
