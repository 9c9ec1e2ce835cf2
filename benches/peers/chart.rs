//! Bar chart of the results: for each load its headline metric and the CPU time of a request on the
//! whole machine.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::load::Load;
use crate::metric::Metric;
use crate::peer::Peer;
use crate::results::Results;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const WIDTH: u32 = 1000;
const ROW: i32 = 20;
const TITLE: i32 = 24;
/// Space in pixels for the names of the peers, and for values after the bars.
const NAMES: i32 = 110;
const VALUES: i32 = 70;

/// Draws the chart into a file.
pub(crate) fn draw(results: &Results, file: &Path) -> Result<()> {
    let panel = TITLE + ROW * results.peers.len() as i32 + ROW;
    let height = panel as u32 * results.loads.len() as u32;
    let area = SVGBackend::new(file, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE).map_err(drawing)?;
    for (load, area) in results.loads.iter().zip(area.split_evenly((results.loads.len(), 1))) {
        let title = ("sans-serif", 18).into_font().style(FontStyle::Bold).into_text_style(&area);
        area.draw_text(load.name, &title, (10, 4)).map_err(drawing)?;
        let (left, right) = area.split_horizontally(WIDTH / 2);
        bars(&left, results, load, load.headline)?;
        bars(&right, results, load, Metric::Machine)?;
    }
    area.present().map_err(drawing)
}

/// A bar for each peer, with a line from the smallest to the largest value.
fn bars(area: &Area, results: &Results, load: &Load, metric: Metric) -> Result<()> {
    let peers = &results.peers;
    let figures = peers.iter().filter_map(|peer| Some((*peer, results.figure(load, *peer, metric)?)));
    let figures: Vec<_> = figures.collect();
    let largest = figures.iter().map(|(_, figure)| figure.max).fold(f64::MIN_POSITIVE, f64::max);
    let length = WIDTH as i32 / 2 - NAMES - VALUES;
    let x = |value: f64| NAMES + (value / largest * f64::from(length)) as i32;
    let small = ("sans-serif", 15).into_font().into_text_style(area);
    let right = small.pos(Pos::new(HPos::Right, VPos::Center));
    let left = small.pos(Pos::new(HPos::Left, VPos::Center));
    area.draw_text(metric.title(), &left, (NAMES, TITLE + 6)).map_err(drawing)?;
    for (row, (peer, figure)) in (1..).zip(figures) {
        let y = TITLE + ROW * row;
        let middle = y + ROW / 2 - 4;
        area.draw_text(peer.name(), &right, (NAMES - 6, middle)).map_err(drawing)?;
        let bar = Rectangle::new([(NAMES, y), (x(figure.median), y + ROW - 7)], color(peer).filled());
        area.draw(&bar).map_err(drawing)?;
        let spread = PathElement::new([(x(figure.min), middle), (x(figure.max), middle)], BLACK);
        area.draw(&spread).map_err(drawing)?;
        let mark = if results.errors(load, peer).0 > 0 { " ⚠" } else { "" };
        let value = metric.format(figure.median) + mark;
        area.draw_text(&value, &left, (x(figure.max) + 6, middle)).map_err(drawing)?;
    }
    Ok(())
}

fn color(peer: Peer) -> RGBColor {
    match peer {
        Peer::Direct => RGBColor(190, 190, 190),
        Peer::Convey => RGBColor(217, 95, 2),
        _ => RGBColor(117, 142, 179),
    }
}

fn drawing(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("{error}")
}
