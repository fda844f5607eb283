//! Usage on disk: batches that control did not accept in time, in the order in
//! which they have to be sent.
//!
//! A record consists of a mark, the length of its batch, its number of events, a
//! checksum over the whole record, and the serialized batch with the identity of
//! the start that sealed it. Records are appended and synced. A sent record is
//! marked, so that it is not sent again after a restart; sent records are
//! removed when they make up all, or most, of the file. A record that was torn
//! by a crash has a wrong checksum or is incomplete.
//!
//! An unreadable file is closed, kept, and scanned again when it is next opened:
//! only damaged records are abandoned.
//!
//! All operations block, and run on other threads than those that serve
//! requests.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use fastllm_contract::UsageBatch;
use ring::digest::{Context, SHA256};

use super::sealed_batch::SealedBatch;

/// The mark of a pending record.
const WAITS: [u8; 4] = *b"WAIT";

/// The mark of a record that was sent or is damaged.
const DONE: [u8; 4] = *b"DONE";

/// Mark, length, number of events, and eight bytes of a SHA-256.
const HEADER: usize = 20;

/// The maximum length of a batch, in bytes.
const MAX_RECORD_BYTES: u32 = 8 << 20;

/// The minimum number of sent bytes for which the file is compacted.
const WORTH: u64 = 4 << 20;

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum SpillError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the file is in use by another process")]
    Locked,
    #[error("not a regular file")]
    NotAFile,
    #[error("a record became unreadable")]
    Damaged,
    #[error("a batch exceeds the maximum record length")]
    TooLong,
}

/// The contents of the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SpillContents {
    /// The number of events that are not sent yet.
    pub(super) events: u64,
    /// File size in bytes.
    pub(super) bytes: u64,
}

/// The spill file. It is opened on demand, and reopened after a failure.
#[derive(Debug)]
pub(super) struct Spill {
    path: PathBuf,
    limit: u64,
    open: Option<OpenSpill>,
    /// Its contents when it was closed because it could not be read.
    closed: SpillContents,
    /// Events of damaged records that were not reported yet.
    damaged: u64,
}

#[derive(Debug)]
struct OpenSpill {
    file: File,
    /// The offset of the oldest pending record.
    head: u64,
    end: u64,
    events: u64,
    /// The number of sent bytes at which the file is compacted.
    compact_threshold: u64,
}

/// The header of a record.
#[derive(Debug, Clone, Copy)]
struct Header {
    waits: bool,
    length: u32,
    events: u32,
    sum: [u8; 8],
}

impl Spill {
    /// A file of at most `limit` bytes, which is not opened yet.
    pub(super) fn new(path: PathBuf, limit: u64) -> Self {
        Self {
            path,
            limit,
            open: None,
            closed: SpillContents::default(),
            damaged: 0,
        }
    }

    /// Its contents, or those when it was closed; nothing before it was opened.
    pub(super) fn contents(&self) -> SpillContents {
        self.open.as_ref().map_or(self.closed, OpenSpill::contents)
    }

    /// Whether the usage of an earlier start is known.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The number of events in damaged records that were found since the last
    /// call; a record with an unknown number of events counts as one.
    pub(super) fn take_damaged(&mut self) -> u64 {
        std::mem::take(&mut self.damaged)
    }

    /// Opens the file, unless it is open, and finds the usage of an earlier
    /// start.
    pub(super) fn open(&mut self) -> Result<(), SpillError> {
        self.opened().map(|_| ())
    }

    fn opened(&mut self) -> Result<&mut OpenSpill, SpillError> {
        let open = if let Some(open) = self.open.take() {
            open
        } else {
            let file = locked(&self.path, false)?;
            sync_folder(&self.path)?;
            let (open, damaged) = OpenSpill::scan(file)?;
            // Pending events that are not found any more are damaged, too.
            let missing = self.closed.events.saturating_sub(open.events);
            self.damaged += damaged.max(missing);
            open
        };
        Ok(self.open.insert(open))
    }

    /// Appends as many batches as fit, syncs them, and returns their number.
    /// After an error, none is stored.
    pub(super) fn append(&mut self, batches: &[SealedBatch]) -> Result<usize, SpillError> {
        let limit = self.limit;
        let path = self.path.clone();
        let open = self.opened()?;
        let records = batches.iter().map(record);
        let records = records.collect::<Result<Vec<_>, _>>()?;
        let length: usize = records.iter().map(Vec::len).sum();
        if open.end + length as u64 > limit {
            open.compact(&path);
        }
        let before = (open.end, open.events);
        let appended = open.append(batches, &records, limit);
        if appended.is_err() {
            // A partial record would be treated as torn, and is overwritten.
            (open.end, open.events) = before;
            let _cut = open.file.set_len(open.end);
        }
        appended
    }

    /// The oldest pending batch. After an error the file is closed, and its
    /// contents stay.
    pub(super) fn oldest(&mut self) -> Result<Option<SealedBatch>, SpillError> {
        self.or_closed(Self::read_oldest)
    }

    /// Removes the oldest batch. After an error the file is closed, and may
    /// return that batch again.
    pub(super) fn done(&mut self) -> Result<(), SpillError> {
        self.or_closed(Self::remove_oldest)
    }

    fn or_closed<R>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<R, SpillError>,
    ) -> Result<R, SpillError> {
        let result = work(self);
        if result.is_err()
            && let Some(open) = self.open.take()
        {
            self.closed = open.contents();
        }
        result
    }

    fn read_oldest(&mut self) -> Result<Option<SealedBatch>, SpillError> {
        loop {
            let open = self.opened()?;
            if open.head >= open.end {
                return Ok(None);
            }
            let (header, body) = open.read(open.head)?;
            if header.waits && header.sum == header.sum_of(&body) {
                return Ok(Some(SealedBatch {
                    events: header.events,
                    body: Bytes::from(body),
                }));
            }
            self.remove_oldest()?;
            // The record was valid when the file was opened.
            self.damaged += header.waiting();
        }
    }

    fn remove_oldest(&mut self) -> Result<(), SpillError> {
        let path = self.path.clone();
        let open = self.opened()?;
        if open.head >= open.end {
            return Ok(());
        }
        open.mark_oldest_sent()?;
        if open.head >= open.end {
            open.file.set_len(0)?;
            (open.head, open.end, open.events) = (0, 0, 0);
        } else if open.head >= open.end - open.head {
            open.compact(&path);
        }
        Ok(())
    }

    /// Abandons the contents of an unreadable file, and returns their number of
    /// events. The file itself is unchanged.
    pub(super) fn give_up(&mut self) -> u64 {
        let held = self.contents().events;
        (self.open, self.closed) = (None, SpillContents::default());
        held
    }
}

impl OpenSpill {
    /// Finds the pending records, and counts the events in damaged ones. Those
    /// are skipped later; a file that ends with a damaged record is truncated
    /// there.
    fn scan(file: File) -> Result<(Self, u64), SpillError> {
        let mut open = Self {
            end: file.metadata()?.len(),
            file,
            head: 0,
            events: 0,
            compact_threshold: WORTH,
        };
        let mut damaged = 0;
        let mut first = None;
        let mut at = 0;
        while at < open.end {
            let header = open.header(at)?;
            let Some(header) = header.filter(|header| header.next(at) <= open.end) else {
                damaged += header.map_or(1, Header::waiting);
                open.end = at;
                open.file.set_len(at)?;
                break;
            };
            if header.waits {
                let (_, body) = open.read(at)?;
                if header.sum == header.sum_of(&body) {
                    first = first.or(Some(at));
                    open.events += header.waiting();
                } else {
                    damaged += header.waiting();
                    open.file.write_all_at(&DONE, at)?;
                }
            }
            at = header.next(at);
        }
        open.head = first.unwrap_or(open.end);
        if first.is_none() && open.end > 0 {
            open.file.set_len(0)?;
            (open.head, open.end) = (0, 0);
        }
        Ok((open, damaged))
    }

    fn contents(&self) -> SpillContents {
        SpillContents {
            events: self.events,
            bytes: self.end,
        }
    }

    /// Nothing if there is no record, or a damaged one.
    fn header(&self, at: u64) -> Result<Option<Header>, SpillError> {
        let mut bytes = [0; HEADER];
        match self.read_at(&mut bytes, at) {
            Err(SpillError::Damaged) => Ok(None),
            read => read.map(|()| Header::parse(&bytes)),
        }
    }

    fn read(&self, at: u64) -> Result<(Header, Vec<u8>), SpillError> {
        let header = self.header(at)?.ok_or(SpillError::Damaged)?;
        let mut body = vec![0; header.length as usize];
        self.read_at(&mut body, at + HEADER as u64)?;
        Ok((header, body))
    }

    /// A truncated file is damaged; other errors may be temporary.
    fn read_at(&self, bytes: &mut [u8], at: u64) -> Result<(), SpillError> {
        let read = self.file.read_exact_at(bytes, at);
        read.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => SpillError::Damaged,
            _ => error.into(),
        })
    }

    fn append(
        &mut self,
        batches: &[SealedBatch],
        records: &[Vec<u8>],
        limit: u64,
    ) -> Result<usize, SpillError> {
        let mut appended = 0;
        for (batch, record) in batches.iter().zip(records) {
            let length = record.len() as u64;
            if self.end + length > limit {
                break;
            }
            self.file.write_all_at(record, self.end)?;
            self.end += length;
            self.events += u64::from(batch.events);
            appended += 1;
        }
        if appended > 0 {
            self.file.sync_data()?;
        }
        Ok(appended)
    }

    /// Marks the oldest record as sent and moves to the next one.
    fn mark_oldest_sent(&mut self) -> Result<(), SpillError> {
        let header = self.header(self.head)?.ok_or(SpillError::Damaged)?;
        // A sync is not necessary: a batch that is sent twice is stored once.
        let _marked = self.file.write_all_at(&DONE, self.head);
        self.events = self.events.saturating_sub(header.waiting());
        self.head = header.next(self.head);
        Ok(())
    }

    /// Compacts the file if enough of it was sent. After a failure, it is
    /// retried when twice as much was sent.
    fn compact(&mut self, path: &Path) {
        if self.head < self.compact_threshold {
            return;
        }
        let mut next = path.as_os_str().to_owned();
        next.push(".next");
        let next = PathBuf::from(next);
        match self.compacted(path, &next) {
            Ok(shorter) => *self = shorter,
            Err(error) => {
                tracing::warn!(%error, "cannot compact the usage spill file");
                self.compact_threshold = self.head.saturating_mul(2);
                let _left = fs::remove_file(&next);
            }
        }
    }

    /// Copies the pending records to a new file, which replaces this one
    /// atomically: readers see the old or the new file, even after a power
    /// failure.
    fn compacted(&mut self, path: &Path, next: &Path) -> Result<Self, SpillError> {
        let mut file = locked(next, true)?;
        self.file.seek(SeekFrom::Start(self.head))?;
        let waiting = self.end - self.head;
        let copied = io::copy(&mut (&self.file).take(waiting), &mut file)?;
        if copied != waiting {
            return Err(SpillError::Damaged);
        }
        file.sync_all()?;
        fs::rename(next, path)?;
        sync_folder(path)?;
        Ok(Self {
            file,
            head: 0,
            end: waiting,
            events: self.events,
            compact_threshold: WORTH,
        })
    }
}

impl Header {
    fn parse(bytes: &[u8; HEADER]) -> Option<Self> {
        let (mark, rest) = bytes.split_first_chunk::<4>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (events, rest) = rest.split_first_chunk::<4>()?;
        let header = Self {
            waits: *mark == WAITS,
            length: u32::from_le_bytes(*length),
            events: u32::from_le_bytes(*events),
            sum: rest.try_into().ok()?,
        };
        let is_one = header.waits || *mark == DONE;
        let fits =
            header.length <= MAX_RECORD_BYTES && header.events as usize <= UsageBatch::MAX_EVENTS;
        (is_one && fits).then_some(header)
    }

    fn sum_of(&self, body: &[u8]) -> [u8; 8] {
        let mut context = Context::new(&SHA256);
        context.update(&self.length.to_le_bytes());
        context.update(&self.events.to_le_bytes());
        context.update(body);
        let mut sum = [0; 8];
        for (kept, byte) in sum.iter_mut().zip(context.finish().as_ref()) {
            *kept = *byte;
        }
        sum
    }

    /// The number of its pending events.
    fn waiting(self) -> u64 {
        if self.waits {
            u64::from(self.events)
        } else {
            0
        }
    }

    /// The offset of the next record.
    fn next(&self, at: u64) -> u64 {
        at + HEADER as u64 + u64::from(self.length)
    }
}

fn record(batch: &SealedBatch) -> Result<Vec<u8>, SpillError> {
    let length = u32::try_from(batch.body.len()).ok();
    let length = length.filter(|length| *length <= MAX_RECORD_BYTES);
    let mut header = Header {
        waits: true,
        length: length.ok_or(SpillError::TooLong)?,
        events: batch.events,
        sum: [0; 8],
    };
    header.sum = header.sum_of(&batch.body);
    let parts: [&[u8]; 5] = [
        &WAITS,
        &header.length.to_le_bytes(),
        &header.events.to_le_bytes(),
        &header.sum,
        &batch.body,
    ];
    Ok(parts.concat())
}

/// Opens or creates a file that only its owner may read, and locks it against
/// other processes.
fn locked(path: &Path, empty: bool) -> Result<File, SpillError> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(SpillError::NotAFile);
    }
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => SpillError::Locked,
        TryLockError::Error(error) => error.into(),
    })?;
    // An existing file may have been readable by others.
    file.set_permissions(Permissions::from_mode(0o600))?;
    if empty {
        file.set_len(0)?;
    }
    Ok(file)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent();
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests;
