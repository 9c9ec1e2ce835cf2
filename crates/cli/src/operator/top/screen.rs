//! Screen of `convey top`, of any size. Pure: it draws into a buffer.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Widget};

use super::column::TopColumn;
use super::fit::{columns, cut, percent, printable, short, time};
use super::rates::{Grade, RowKind, TopRow};
use super::state::TopState;

/// Minimum height for a list of reasons and a list of events, each with a title.
const HEIGHT_FOR_ALL: u16 = 18;

/// Minimum height for longer lists of reasons and events.
const HEIGHT_FOR_MORE: u16 = 40;

/// Placeholder for a missing number.
const NO_NUMBER: &str = "-";

/// Style of the output.
#[derive(Clone, Copy)]
struct Look {
    has_colors: bool,
    has_keys: bool,
}

/// Heights of the parts of the screen, in lines.
struct Heights {
    notice: u16,
    drops: u16,
    events: u16,
    keys: u16,
}

impl Heights {
    fn of(height: u16, state: &TopState) -> Heights {
        let has_notice = notice(state).is_some();
        let (drops, events) = match height {
            HEIGHT_FOR_MORE.. => (4, 9),
            HEIGHT_FOR_ALL.. => (3, 4),
            _ => (1, 0),
        };
        Heights { notice: u16::from(has_notice || height >= HEIGHT_FOR_ALL), drops, events, keys: 1 }
    }
}

/// Draws the screen. Without `has_colors` it uses only bold and reversed text for emphasis.
pub fn draw(area: Rect, buffer: &mut Buffer, state: &mut TopState, has_colors: bool) {
    let heights = Heights::of(area.height, state);
    paint(area, buffer, state, &heights, Look { has_colors, has_keys: true });
    if state.is_helping {
        paint_help(area, buffer, state);
    }
}

/// Text of the screen, with all rows.
pub fn top_text(state: &mut TopState, width: u16) -> String {
    let heights = Heights { keys: 0, ..Heights::of(HEIGHT_FOR_ALL, state) };
    let rows = u16::try_from(state.rows().len()).unwrap_or(u16::MAX);
    // The table has a line of titles, and an empty line follows it.
    let others = 4 + heights.notice + heights.drops + heights.events;
    let area = Rect::new(0, 0, width.max(1), rows.saturating_add(others));
    let mut buffer = Buffer::empty(area);
    paint(area, &mut buffer, state, &heights, Look { has_colors: false, has_keys: false });
    let lines: Vec<String> = (area.top()..area.bottom()).map(|y| line_of(&buffer, y)).collect();
    lines.join("\n").trim_end().to_owned() + "\n"
}

/// Text of a line of the buffer. The cell after a wide character is empty.
pub(super) fn line_of(buffer: &Buffer, y: u16) -> String {
    let area = buffer.area;
    let mut line = String::new();
    let mut x = area.left();
    while x < area.right() {
        let letter = buffer[(x, y)].symbol();
        line += letter;
        x += columns(letter).max(1) as u16;
    }
    line.trim_end().to_owned()
}

fn paint(area: Rect, buffer: &mut Buffer, state: &mut TopState, heights: &Heights, look: Look) {
    let parts = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(heights.notice),
        Constraint::Min(1),
        Constraint::Length(heights.drops),
        Constraint::Length(heights.events),
        Constraint::Length(heights.keys),
    ]);
    let [head, notices, table, drops, events, keys] = parts.areas(area);
    state.page = usize::from(table.height.saturating_sub(1));
    state.first = state.first.min(state.last_first());
    if let Some(rates) = &state.rates {
        state.columns = TopColumn::fitting(area.width, rates);
    }
    let state = &*state;
    Paragraph::new(head_of(state, head.width)).render(head, buffer);
    if let Some(text) = notice(state) {
        let text = cut(&text, notices.width.into());
        Paragraph::new(text).style(style(Grade::Bad, look)).render(notices, buffer);
    }
    Paragraph::new(table_of(state, table, look)).render(table, buffer);
    Paragraph::new(drops_of(state, drops)).render(drops, buffer);
    Paragraph::new(events_of(state, events, look)).render(events, buffer);
    if look.has_keys {
        let text = cut(&keys_of(state), keys.width.into());
        Paragraph::new(text).style(Style::new().add_modifier(Modifier::REVERSED)).render(keys, buffer);
    }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn style(grade: Grade, look: Look) -> Style {
    match (grade, look.has_colors) {
        (Grade::Good, _) => Style::new(),
        (_, false) => bold(),
        (Grade::Odd, true) => Style::new().fg(Color::Yellow),
        (Grade::Bad, true) => Style::new().fg(Color::Red),
    }
}

fn rate(value: Option<f64>) -> String {
    value.map_or_else(|| NO_NUMBER.to_owned(), short)
}

fn head_of(state: &TopState, width: u16) -> Vec<Line<'static>> {
    let Some(rates) = &state.rates else { return vec![Line::from("convey")] };
    let up = humantime::format_duration(Duration::from_secs(rates.uptime_seconds)).to_string();
    let up: Vec<&str> = up.split(' ').take(2).collect();
    let (servers_up, servers) = rates.servers;
    let paused = if state.paused_at.is_some() { "PAUSED  " } else { "" };
    let clock = humantime::format_rfc3339_seconds(rates.clock).to_string();
    let clock = clock.get(11..19).unwrap_or_default();
    let left = format!("{paused}convey {}  {}  up {}", rates.version, rates.modes, up.join(" "));
    let right = format!("{servers_up} of {servers} servers up  {clock} UTC");
    let of = |column| rates.totals.get(column);
    let dropped =
        rates.drops.iter().map(|(_, rate, _)| *rate).reduce(|a, b| Some(a? + b?)).unwrap_or(Some(0.0));
    let (requests, errors) = (of(TopColumn::Requests), of(TopColumn::ServerErrors));
    let share = requests.zip(errors).filter(|(requests, _)| *requests > 0.0);
    let share = share.map(|(requests, errors)| format!(" ({})", percent(errors / requests)));
    let requests = format!("{} req/s  {} 5xx/s{}  ", rate(requests), rate(errors), share.unwrap_or_default());
    let totals = format!(
        "{} new/s  {} open  {}in {}B/s  out {}B/s  dropped {}/s",
        rate(of(TopColumn::New)),
        rate(of(TopColumn::Open)),
        if rates.has_requests { &*requests } else { "" },
        rate(of(TopColumn::In)),
        rate(of(TopColumn::Out)),
        rate(dropped.filter(|_| of(TopColumn::New).is_some())),
    );
    let width = usize::from(width);
    let title = Span::styled(cut(&between(&left, &right, width), width), bold());
    vec![Line::from(title), Line::from(cut(&totals, width))]
}

/// Joins a left-aligned and a right-aligned text. Omits the right text if both do not fit into
/// `width`.
fn between(left: &str, right: &str, width: usize) -> String {
    let free = width.saturating_sub(columns(left) + columns(right));
    if free < 2 { left.to_owned() } else { format!("{left}{}{right}", " ".repeat(free)) }
}

/// Notice about lost contact to convey, or about unready parts; `None` if there is neither.
fn notice(state: &TopState) -> Option<String> {
    let rates = state.rates.as_ref();
    if let Some(why) = &state.lost {
        let since = rates.map(|rates| humantime::format_rfc3339_seconds(rates.clock).to_string());
        let since = since.as_ref().and_then(|since| since.get(11..19)).unwrap_or("the start");
        return Some(format!("NO RESPONSE since {since} UTC, retrying: {why}"));
    }
    match &rates?.not_ready[..] {
        [] => None,
        [one] => Some(format!("NOT READY: {one}")),
        [first, others @ ..] => Some(format!("NOT READY: {first} (and {} more)", others.len())),
    }
}

fn table_of(state: &TopState, area: Rect, look: Look) -> Vec<Line<'static>> {
    let others: u16 = state.columns[1..].iter().map(|column| column.width() + 1).sum();
    let name_width = usize::from(area.width.saturating_sub(others));
    let mut title = Vec::new();
    for column in &state.columns {
        let of_sort = if *column == state.sort { Modifier::REVERSED } else { Modifier::empty() };
        let style = bold().add_modifier(of_sort);
        match column {
            TopColumn::Name => {
                title.push(Span::styled("NAME", style));
                title.push(Span::raw(" ".repeat(name_width.saturating_sub(4))));
            }
            TopColumn::State => {
                title.extend([Span::raw(" "), Span::styled("STATE", style), Span::raw("    ")])
            }
            _ => {
                let free = usize::from(column.width() + 1).saturating_sub(column.title().len());
                title.extend([Span::raw(" ".repeat(free)), Span::styled(column.title(), style)]);
            }
        }
    }
    let rows = state.rows();
    let page = rows.iter().skip(state.first).take(area.height.saturating_sub(1).into());
    let lines = page.map(|row| Line::styled(cells(row, &state.columns, name_width), style(row.grade, look)));
    let mut lines: Vec<Line<'static>> = [Line::from(title)].into_iter().chain(lines).collect();
    if rows.is_empty() && !state.filter.is_empty() {
        lines.push(Line::from(cut(&format!("no match for \"{}\"", state.filter), area.width.into())));
    }
    lines
}

fn cells(row: &TopRow, shown: &[TopColumn], name_width: usize) -> String {
    let name = match row.kind {
        RowKind::Frontend => format!("frontend {}", row.name),
        RowKind::Route => format!("  route {}", row.name),
        RowKind::Backend => format!("backend {}", row.name),
        RowKind::Server => format!("  {}", row.name),
    };
    let name = cut(&name, name_width);
    let mut line = format!("{name}{}", " ".repeat(name_width.saturating_sub(columns(&name))));
    for column in &shown[1..] {
        let width = usize::from(column.width());
        line += &match column {
            TopColumn::State => format!(" {:<width$}", cut(&row.state, width)),
            _ => format!(" {:>width$}", number(row, *column)),
        };
    }
    line
}

fn number(row: &TopRow, column: TopColumn) -> String {
    use TopColumn::{Connect50, Connect99, Response50, Response90, Response99, Session50, Session99, Share};
    match (column, row.values.get(column)) {
        (_, None) => NO_NUMBER.to_owned(),
        (Connect50 | Connect99 | Session50 | Session99, Some(seconds)) => time(seconds),
        (Response50 | Response90 | Response99, Some(seconds)) => time(seconds),
        (Share, Some(share)) => format!("{share:.0}%"),
        (_, Some(number)) => short(number),
    }
}

/// Lines with 5xx responses of servers and with the reasons of drops. The last line has the number
/// of items that do not fit.
fn drops_of(state: &TopState, area: Rect) -> Vec<Line<'static>> {
    let width = usize::from(area.width);
    let has_title = area.height > 1;
    let has_requests = state.rates.as_ref().is_some_and(|rates| rates.has_requests);
    let title = match (has_title, has_requests) {
        (true, true) => "5XX OF SERVERS, DROPPED, REFUSED, ENDED EARLY  a second (since the start)",
        (true, false) => "DROPPED, REFUSED, ENDED EARLY  a second (since the start)",
        (false, _) => "dropped:",
    };
    let drops = losses(state);
    if drops.is_empty() {
        let nothing = if has_title { "nothing" } else { "dropped: nothing" };
        let title = has_title.then(|| Line::styled(cut(title, width), bold()));
        return title.into_iter().chain([Line::from(cut(nothing, width))]).collect();
    }
    let mut lines = vec![if has_title { String::new() } else { title.to_owned() }];
    let most = usize::from(area.height).saturating_sub(usize::from(has_title)).max(1);
    for (n, (reason, a_second, all)) in drops.iter().enumerate() {
        let item = format!("{reason} {} ({})", rate(*a_second), short(*all as f64));
        let line = lines.len() - 1;
        let glue = if lines[line].is_empty() { "" } else { "  " };
        // Leave space for the number of hidden reasons.
        let others = drops.len() - n - 1;
        let reserved = if lines.len() == most && others > 0 { format!("  +{others} more").len() } else { 0 };
        if lines[line].is_empty() || columns(&lines[line]) + glue.len() + columns(&item) + reserved <= width {
            lines[line] += &format!("{glue}{item}");
        } else if lines.len() < most {
            lines.push(item);
        } else {
            lines[line] += &format!("  +{} more", drops.len() - n);
            break;
        }
    }
    let lines = lines.into_iter().map(|line| Line::from(cut(&line, width)));
    has_title.then(|| Line::styled(cut(title, width), bold())).into_iter().chain(lines).collect()
}

/// Reasons of drops, with their rate a second and their count since the start. 5xx responses of
/// servers come first.
fn losses(state: &TopState) -> Vec<(String, Option<f64>, u64)> {
    let Some(rates) = &state.rates else { return Vec::new() };
    let (a_second, all) = rates.server_errors;
    let of_servers = (all > 0).then(|| ("server_5xx".to_owned(), a_second, all));
    of_servers.into_iter().chain(rates.drops.iter().cloned()).collect()
}

fn events_of(state: &TopState, area: Rect, look: Look) -> Vec<Line<'static>> {
    if area.height == 0 {
        return Vec::new();
    }
    let width = usize::from(area.width);
    let events = state.events(usize::from(area.height) - 1).into_iter().map(|event| {
        let at = event.at.to_string();
        let clock = at.get(11..19).unwrap_or_default();
        let grade = match &*event.level {
            "error" => Grade::Bad,
            "warn" => Grade::Odd,
            _ => Grade::Good,
        };
        Line::styled(cut(&printable(&format!("{clock} {}", event.text)), width), style(grade, look))
    });
    [Line::styled(cut("EVENTS", width), bold())].into_iter().chain(events).collect()
}

fn keys_of(state: &TopState) -> String {
    if state.is_typing {
        return format!("filter: {}_  Enter applies, Esc clears", state.filter);
    }
    let order = if state.is_reversed { "r reversed" } else { "r reverse" };
    let filter =
        if state.filter.is_empty() { "filter".to_owned() } else { format!("filter: {}", state.filter) };
    let pause = if state.paused_at.is_some() { "p resume" } else { "p pause" };
    format!("q quit  s sort: {}  {order}  / {filter}  {pause}  ? help", state.sort.title())
}

fn paint_help(area: Rect, buffer: &mut Buffer, state: &TopState) {
    let keys = [
        ("q, Esc, Ctrl-C", "quit"),
        ("left, right, s", "sort by another column"),
        ("r", "reverse the order"),
        ("/", "filter by names and states; Enter applies, Esc clears"),
        ("up, down, PgUp, PgDn", "scroll; Home, End"),
        ("p, space", "pause, resume"),
    ];
    let keys = keys.into_iter().map(|(key, does)| format!("{key:<20} {does}"));
    let columns = state.columns.iter().map(|column| format!("{:<20} {}", column.title(), column.meaning()));
    let lines: Vec<String> = keys.chain([String::new()]).chain(columns).collect();
    let (width, height) = (area.width.min(76), area.height.min(lines.len() as u16 + 2));
    let middle =
        Rect::new(area.x + (area.width - width) / 2, area.y + (area.height - height) / 2, width, height);
    Clear.render(middle, buffer);
    let lines: Vec<Line<'static>> = lines.into_iter().map(Line::from).collect();
    Paragraph::new(lines).block(Block::bordered().title("any key closes this help")).render(middle, buffer);
}
