//! State of the screen: samples, sort order, filter and scroll position. Pure.

use std::cmp::Ordering;
use std::collections::{BTreeSet, VecDeque};

use convey_api::EventReport;

use super::column::TopColumn;
use super::fit::printable;
use super::rates::{RowKind, TopFrontend, TopGroup, TopRates, TopRow, rates};
use super::sample::{TopSample, is_restarted};

/// Maximum number of kept events: more than any screen has lines for.
const MAX_EVENTS: usize = 100;

/// Maximum length of the filter, in bytes.
const MAX_FILTER: usize = 64;

/// Maximum number of shown routes of a frontend: the busiest.
const MAX_ROUTES: usize = 10;

/// Key that the operator pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopKey {
    /// A printable character.
    Char(char),
    /// Enter.
    Enter,
    /// Escape.
    Escape,
    /// Backspace.
    Backspace,
    /// Scrolls by this number of rows; up if it is negative.
    Row(isize),
    /// Scrolls by this number of screens; up if it is negative.
    Page(isize),
    /// Scrolls to the first row.
    Home,
    /// Scrolls to the last row.
    End,
    /// Sorts by another column, this number of columns to the right; to the left if it is negative.
    Column(isize),
    /// Ctrl-C.
    Interrupt,
}

/// State of the screen.
#[derive(Debug)]
pub struct TopState {
    last: Option<TopSample>,
    /// Rates on the screen. While paused, they are older than the last sample.
    pub(super) rates: Option<TopRates>,
    events: VecDeque<EventReport>,
    pub(super) sort: TopColumn,
    pub(super) is_reversed: bool,
    pub(super) filter: String,
    /// Whether the operator is typing a filter.
    pub(super) is_typing: bool,
    /// Number of the first hidden event while paused; `None` if not paused.
    pub(super) paused_at: Option<u64>,
    pub(super) is_helping: bool,
    /// Reason why convey does not respond; `None` if it responds.
    pub(super) lost: Option<String>,
    /// Index of the first row on the screen.
    pub(super) first: usize,
    /// Number of rows that fit on the screen.
    pub(super) page: usize,
    /// Columns that fit on the screen.
    pub(super) columns: Vec<TopColumn>,
}

impl TopState {
    /// Creates an empty state with this sort column and filter.
    pub fn new(sort: TopColumn, filter: &str) -> TopState {
        TopState {
            last: None,
            rates: None,
            events: VecDeque::new(),
            sort,
            is_reversed: false,
            filter: printable(filter),
            is_typing: false,
            paused_at: None,
            is_helping: false,
            lost: None,
            first: 0,
            page: 1,
            columns: TopColumn::ALL.to_vec(),
        }
    }

    /// Adds a sample. While paused, the screen does not change.
    pub fn take(&mut self, mut sample: TopSample) {
        self.lost = None;
        if self.last.as_ref().is_some_and(|last| is_restarted(&sample.status, &last.status)) {
            self.events.clear();
            self.paused_at = self.paused_at.map(|_| 0);
        }
        let next = self.next_event();
        self.events.extend(sample.events.drain(..).filter(|event| event.number >= next));
        self.events.drain(..self.events.len().saturating_sub(MAX_EVENTS));
        if self.paused_at.is_none() {
            self.rates = Some(rates(self.last.as_ref(), &sample));
        }
        self.last = Some(sample);
    }

    /// Records that there was no response, and the reason.
    pub fn note_failure(&mut self, why: &str) {
        self.lost = Some(printable(why));
    }

    fn next_event(&self) -> u64 {
        self.events.back().map_or(0, |event| event.number + 1)
    }

    /// Returns at most `most` of the last events, the newest last.
    pub(super) fn events(&self, most: usize) -> Vec<&EventReport> {
        let is_shown = |event: &&EventReport| self.paused_at.is_none_or(|until| event.number < until);
        let shown: Vec<&EventReport> = self.events.iter().filter(is_shown).collect();
        shown[shown.len().saturating_sub(most)..].to_vec()
    }

    /// Handles a key. Returns whether to quit.
    pub fn press(&mut self, key: TopKey) -> bool {
        match key {
            TopKey::Interrupt => return true,
            _ if self.is_helping => self.is_helping = false,
            _ if self.is_typing => self.type_filter(key),
            TopKey::Char('q') => return true,
            // The first Escape clears the filter.
            TopKey::Escape if self.filter.is_empty() => return true,
            TopKey::Escape => self.filter.clear(),
            TopKey::Char('?' | 'h') => self.is_helping = true,
            TopKey::Char('/') => self.is_typing = true,
            TopKey::Char('p' | ' ') => {
                self.paused_at = if self.paused_at.is_some() { None } else { Some(self.next_event()) };
            }
            TopKey::Char('r') => self.is_reversed = !self.is_reversed,
            TopKey::Char('s') => self.sort_by_next(1),
            TopKey::Column(by) => self.sort_by_next(by),
            TopKey::Char('j') => self.scroll(1),
            TopKey::Char('k') => self.scroll(-1),
            TopKey::Row(by) => self.scroll(by),
            TopKey::Page(by) => self.scroll(by.saturating_mul(self.page.max(1) as isize)),
            TopKey::Home => self.first = 0,
            TopKey::End => self.scroll(isize::MAX),
            TopKey::Char(_) | TopKey::Enter | TopKey::Backspace => {}
        }
        false
    }

    fn type_filter(&mut self, key: TopKey) {
        match key {
            TopKey::Char(letter) if self.filter.len() + letter.len_utf8() <= MAX_FILTER => {
                self.filter += &printable(letter.encode_utf8(&mut [0; 4]));
            }
            TopKey::Backspace => _ = self.filter.pop(),
            TopKey::Enter => self.is_typing = false,
            TopKey::Escape => {
                self.filter.clear();
                self.is_typing = false;
            }
            _ => {}
        }
        self.first = 0;
    }

    fn sort_by_next(&mut self, by: isize) {
        let all = &self.columns;
        let now = all.iter().position(|column| *column == self.sort).unwrap_or(0) as isize;
        let next = (now + by).rem_euclid(all.len().max(1) as isize) as usize;
        (self.sort, self.first) = (all.get(next).copied().unwrap_or_default(), 0);
    }

    fn scroll(&mut self, by: isize) {
        self.first = self.first.saturating_add_signed(by).min(self.last_first());
    }

    /// Largest index of the first row on the screen.
    pub(super) fn last_first(&self) -> usize {
        self.rows().len().saturating_sub(self.page)
    }

    /// Rows that match the filter: backends in order, each with its servers. A frontend is above
    /// the first of its backends, and has its routes below it.
    pub(super) fn rows(&self) -> Vec<&TopRow> {
        let wanted = self.filter.to_lowercase();
        let mut groups: Vec<&TopGroup> = self.rates.iter().flat_map(|rates| &rates.groups).collect();
        groups.sort_by(|a, b| self.order(&a.backend, &b.backend));
        let redirects = self.rates.iter().flat_map(|rates| &rates.redirects);
        let mut rows: Vec<&TopRow> =
            redirects.flat_map(|frontend| self.rows_of_frontend(frontend, &wanted, false)).collect();
        let mut shown = BTreeSet::new();
        for group in groups {
            let is_wanted = has(&group.backend.name, &wanted);
            for frontend in &group.frontends {
                let of_frontend = self.rows_of_frontend(frontend, &wanted, is_wanted);
                if !of_frontend.is_empty() && shown.insert(&*frontend.row.name) {
                    rows.extend(of_frontend);
                }
            }
            rows.extend(self.rows_of_backend(group, &wanted));
        }
        rows
    }

    /// Rows of a frontend and its busiest routes, or its routes that match the filter. Empty if
    /// neither the frontend nor a route matches, unless `is_wanted`.
    fn rows_of_frontend<'a>(
        &self,
        frontend: &'a TopFrontend,
        wanted: &str,
        is_wanted: bool,
    ) -> Vec<&'a TopRow> {
        let mut routes: Vec<&TopRow> = frontend.routes.iter().filter(|row| has(&row.name, wanted)).collect();
        if is_wanted || has(&frontend.row.name, wanted) {
            routes = frontend.routes.iter().collect();
        } else if routes.is_empty() {
            return Vec::new();
        }
        if routes.len() > MAX_ROUTES {
            let requests = |row: &TopRow| row.values.get(TopColumn::Requests).unwrap_or(-1.0);
            routes.sort_by(|a, b| requests(b).total_cmp(&requests(a)));
            routes.truncate(MAX_ROUTES);
        }
        routes.sort_by(|a, b| self.order(a, b));
        [&frontend.row].into_iter().chain(routes).collect()
    }

    /// Rows of a backend; empty if neither the backend, a frontend of it, nor a server matches the
    /// filter.
    fn rows_of_backend<'a>(&self, group: &'a TopGroup, wanted: &str) -> Vec<&'a TopRow> {
        let is_wanted = has(&group.backend.name, wanted)
            || group.frontends.iter().any(|frontend| has(&frontend.row.name, wanted));
        let is_server_wanted = |row: &&TopRow| {
            is_wanted || has(&format!("{}/{} {}", group.backend.name, row.name, row.state), wanted)
        };
        let mut servers: Vec<&TopRow> = group.servers.iter().filter(is_server_wanted).collect();
        if !is_wanted && servers.is_empty() {
            return Vec::new();
        }
        servers.sort_by(|a, b| self.order(a, b));
        [&group.backend].into_iter().chain(servers).collect()
    }

    /// Compares two rows by the sort column: largest number first, worst state first.
    fn order(&self, a: &TopRow, b: &TopRow) -> Ordering {
        let value = |row: &TopRow| row.values.get(self.sort).unwrap_or(-1.0);
        let by_column = match self.sort {
            TopColumn::Name => Ordering::Equal,
            TopColumn::State if a.kind == RowKind::Backend => a.grade.cmp(&b.grade),
            TopColumn::State => a.grade.cmp(&b.grade).then_with(|| a.state.cmp(&b.state)),
            _ => value(b).total_cmp(&value(a)),
        };
        let order = by_column.then_with(|| a.name.cmp(&b.name));
        if self.is_reversed { order.reverse() } else { order }
    }
}

fn has(text: &str, wanted: &str) -> bool {
    text.to_lowercase().contains(wanted)
}
