//! Bytes of one chunk that cost only what was written.
//!
//! Two layers: a base of filled runs, aligned to pages, and single pages above it. Bytes in neither
//! are zero. A fill of any size is one run, so that filling gigabytes stays cheap.

use std::collections::BTreeMap;

/// Bytes of one page of the table; unrelated to the pages of the device and of the host.
const PAGE: u64 = 4096;

/// The content of one chunk.
#[derive(Debug, Default)]
pub(super) struct Sparse {
    /// Start to (end, byte) of each filled run; runs do not overlap, edges are multiples of [`PAGE`].
    runs: BTreeMap<u64, (u64, u8)>,
    /// Page number to content; hides the runs.
    pages: BTreeMap<u64, Box<[u8]>>,
}

impl Sparse {
    /// Copies bytes out, from `offset` on.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) {
        for (page, within, part) in pieces(offset, out.len()) {
            let target = &mut out[part];
            match self.pages.get(&page) {
                Some(bytes) => target.copy_from_slice(&bytes[within..within + target.len()]),
                None => target.fill(self.base(page)),
            }
        }
    }

    /// Overwrites bytes, from `offset` on.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (page, within, part) in pieces(offset, bytes.len()) {
            let source = &bytes[part];
            self.page(page)[within..within + source.len()].copy_from_slice(source);
        }
    }

    /// Sets `len` bytes to one value.
    pub(super) fn fill(&mut self, offset: u64, len: u64, byte: u8) {
        let end = offset + len;
        let (first, last) = (offset.next_multiple_of(PAGE), end / PAGE * PAGE);
        if first >= last {
            self.fill_edge(offset, end, byte);
            return;
        }
        self.fill_edge(offset, first, byte);
        self.fill_edge(last, end, byte);
        let mut hidden = self.pages.split_off(&(first / PAGE));
        let mut behind = hidden.split_off(&(last / PAGE));
        self.pages.append(&mut behind);
        self.cut_runs(first, last);
        if byte != 0 {
            self.runs.insert(first, (last, byte));
        }
    }

    /// The value of all bytes of a range, if that can be told without reading pages.
    pub(super) fn uniform(&self, offset: u64, len: u64) -> Option<u8> {
        let end = offset + len;
        if self.pages.range(offset / PAGE..end.div_ceil(PAGE)).next().is_some() {
            return None;
        }
        match self.runs.range(..end).next_back() {
            Some((&start, &(stop, byte))) if stop > offset => {
                (start <= offset && end <= stop).then_some(byte)
            }
            _ => Some(0),
        }
    }

    fn fill_edge(&mut self, from: u64, to: u64, byte: u8) {
        for (page, within, part) in pieces(from, (to - from) as usize) {
            self.page(page)[within..within + part.len()].fill(byte);
        }
    }

    /// Removes the runs between two page edges, cutting those that reach over.
    fn cut_runs(&mut self, from: u64, to: u64) {
        let before = self.runs.range(..from).next_back().map(|(&start, &run)| (start, run));
        if let Some((start, (stop, byte))) = before
            && stop > from
        {
            self.runs.insert(start, (from, byte));
            if stop > to {
                self.runs.insert(to, (stop, byte));
            }
        }
        while let Some((start, (stop, byte))) = self.runs.range(from..to).next().map(|(&s, &run)| (s, run)) {
            self.runs.remove(&start);
            if stop > to {
                self.runs.insert(to, (stop, byte));
            }
        }
    }

    fn base(&self, page: u64) -> u8 {
        let at = page * PAGE;
        self.runs.range(..=at).next_back().map_or(0, |(_, &(stop, byte))| if stop > at { byte } else { 0 })
    }

    fn page(&mut self, page: u64) -> &mut [u8] {
        let base = self.base(page);
        self.pages.entry(page).or_insert_with(|| vec![base; PAGE as usize].into_boxed_slice())
    }
}

/// Cuts a range at page edges: page number, offset in the page, part of the range.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % PAGE) as usize;
        let size = (PAGE as usize - within).min(len - done);
        let part = done..done + size;
        done += size;
        Some((at / PAGE, within, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_a_plain_array() {
        const SIZE: u64 = 40 * PAGE;
        let mut random = fastrand::Rng::with_seed(3);
        let mut plain = vec![0u8; SIZE as usize];
        let mut sparse = Sparse::default();
        for _ in 0..3000 {
            let offset = random.u64(..SIZE);
            let most = 1 << random.u32(0..18);
            let len = random.u64(..=(SIZE - offset).min(most));
            let range = offset as usize..(offset + len) as usize;
            let byte = random.u8(..4);
            match random.u8(..4) {
                0 => {
                    sparse.fill(offset, len, byte);
                    plain[range].fill(byte);
                }
                1 => {
                    let bytes: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
                    sparse.write(offset, &bytes);
                    plain[range].copy_from_slice(&bytes);
                }
                2 => {
                    let mut out = vec![9; len as usize];
                    sparse.read(offset, &mut out);
                    assert_eq!(out, plain[range]);
                }
                _ => {
                    if let Some(value) = sparse.uniform(offset, len) {
                        assert!(plain[range].iter().all(|&byte| byte == value));
                    }
                }
            }
        }
    }

    #[test]
    fn filling_gigabytes_makes_one_run() {
        let mut sparse = Sparse::default();
        sparse.fill(100, 8 << 30, 7);
        assert_eq!((sparse.runs.len(), sparse.pages.len()), (1, 2));
        assert_eq!(sparse.uniform(1 << 20, 7 << 30), Some(7));
    }
}
