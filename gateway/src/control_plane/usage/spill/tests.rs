use std::fs;
use std::os::unix::fs::PermissionsExt;

use bytes::Bytes;
use proptest::prelude::*;
use tempfile::TempDir;

use super::{HEADER, OpenSpill, SealedBatch, Spill, SpillContents, SpillError, WORTH};

fn batch(number: u32, length: usize) -> SealedBatch {
    let mut body = format!("{number:08}").into_bytes();
    body.resize(length.max(8), b'x');
    SealedBatch {
        events: number % 500 + 1,
        body: Bytes::from(body),
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn spill(folder: &TempDir, limit: u64) -> Spill {
    Spill::new(folder.path().join("usage.spill"), limit)
}

fn drained(spill: &mut Spill) -> Vec<SealedBatch> {
    let mut all = Vec::new();
    while let Some(batch) = spill.oldest().unwrap() {
        all.push(batch);
        spill.done().unwrap();
    }
    all
}

fn size(spill: &Spill) -> u64 {
    fs::metadata(&spill.path).unwrap().len()
}

#[test]
fn batches_are_returned_in_order_and_the_file_empties() {
    let folder = folder();
    let mut first = spill(&folder, 1 << 20);
    let batches: Vec<_> = (0..5).map(|number| batch(number, 100)).collect();
    assert_eq!(first.append(&batches[..2]).unwrap(), 2);
    assert_eq!(first.append(&batches[2..]).unwrap(), 3);
    let bytes = 5 * (HEADER as u64 + 100);
    assert_eq!(first.contents(), SpillContents { events: 15, bytes });
    assert_eq!(size(&first), bytes);
    assert_eq!(first.oldest().unwrap().as_ref(), Some(&batches[0]));
    first.done().unwrap();
    drop(first);

    let mut second = spill(&folder, 1 << 20);
    second.open().unwrap();
    assert_eq!(second.contents().events, 14);
    assert_eq!(drained(&mut second), batches[1..]);
    assert_eq!(second.contents(), SpillContents::default());
    assert_eq!((size(&second), second.take_damaged()), (0, 0));
    let mode = fs::metadata(&second.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn the_file_never_exceeds_its_limit() {
    let folder = folder();
    let mut spill = spill(&folder, 300);
    let batches: Vec<_> = (0..5).map(|number| batch(number, 100)).collect();
    assert_eq!(spill.append(&batches).unwrap(), 2);
    assert_eq!(spill.append(&batches).unwrap(), 0);
    assert!(size(&spill) <= 300);
    assert_eq!(drained(&mut spill), batches[..2]);
    assert_eq!(spill.append(&batches[2..3]).unwrap(), 1);
}

#[test]
fn sent_records_are_compacted_while_others_are_pending() {
    let folder = folder();
    let length = 1 << 20;
    let mut spill = spill(&folder, 12 * length as u64);
    let mut expected = Vec::new();
    let mut next = 0;
    for round in 0..10 {
        // The file is never empty, and always as full as possible.
        loop {
            let batch = batch(next, length);
            if spill.append(std::slice::from_ref(&batch)).unwrap() == 0 {
                break;
            }
            expected.push(batch);
            next += 1;
        }
        assert!(size(&spill) <= 12 * length as u64);
        for _ in 0..6 {
            assert_eq!(spill.oldest().unwrap(), Some(expected.remove(0)), "{round}");
            spill.done().unwrap();
        }
    }
    assert!(size(&spill) < 12 * length as u64);
    assert!(spill.open.as_ref().unwrap().head < 2 * WORTH);
    assert_eq!(drained(&mut spill), expected);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn only_one_process_can_open_the_file() {
    let folder = folder();
    let mut first = spill(&folder, 1000);
    first.append(&[batch(1, 10)]).unwrap();
    let mut second = spill(&folder, 1000);
    assert!(matches!(second.open(), Err(SpillError::Locked)));
    drop(first);
    assert_eq!(drained(&mut second), [batch(1, 10)]);
}

#[test]
fn an_unusable_file_is_an_error_until_it_recovers() {
    let folder = folder();
    let path = folder.path().join("none/usage.spill");
    let mut spill = Spill::new(path.clone(), 1000);
    assert!(spill.append(&[batch(1, 10)]).is_err());
    assert_eq!(spill.contents(), SpillContents::default());
    fs::create_dir(path.parent().unwrap()).unwrap();
    assert_eq!(spill.append(&[batch(1, 10)]).unwrap(), 1);
    let mut of_folder = Spill::new(folder.path().to_owned(), 1000);
    assert!(of_folder.open().is_err());
}

#[test]
fn a_damaged_record_is_counted_and_the_others_are_sent() {
    let folder = folder();
    let mut first = spill(&folder, 1 << 20);
    let batches: Vec<_> = (0..3).map(|number| batch(number, 100)).collect();
    first.append(&batches).unwrap();
    let path = first.path.clone();
    drop(first);
    let mut bytes = fs::read(&path).unwrap();
    bytes[2 * HEADER + 150] ^= 1;
    fs::write(&path, &bytes).unwrap();

    let mut second = spill(&folder, 1 << 20);
    second.open().unwrap();
    assert_eq!(second.take_damaged(), u64::from(batches[1].events));
    let left = [batches[0].clone(), batches[2].clone()];
    assert_eq!(drained(&mut second), left);
}

impl Spill {
    /// Makes the next read fail, like a temporary disk error.
    pub(in crate::control_plane::usage) fn fail_next_read(&mut self) {
        let unreadable = fs::OpenOptions::new().write(true).open("/dev/null");
        self.open.as_mut().unwrap().file = unreadable.unwrap();
    }
}

#[test]
fn a_failed_read_closes_the_file_and_abandons_nothing() {
    let folder = folder();
    let mut spill = spill(&folder, 1 << 20);
    let batches: Vec<_> = (0..3).map(|number| batch(number, 100)).collect();
    spill.append(&batches).unwrap();
    let contents = spill.contents();
    spill.fail_next_read();
    assert!(matches!(spill.oldest(), Err(SpillError::Io(_))));
    assert_eq!((spill.is_open(), spill.contents()), (false, contents));
    assert_eq!(spill.oldest().unwrap().as_ref(), Some(&batches[0]));
    spill.fail_next_read();
    assert!(matches!(spill.done(), Err(SpillError::Io(_))));
    assert_eq!((spill.is_open(), spill.contents()), (false, contents));
    assert_eq!(drained(&mut spill), batches);
    assert_eq!(
        (spill.contents(), spill.take_damaged()),
        (SpillContents::default(), 0)
    );
}

#[test]
fn a_failed_read_during_the_scan_truncates_nothing() {
    let folder = folder();
    let mut first = spill(&folder, 1 << 20);
    let batches: Vec<_> = (0..3).map(|number| batch(number, 100)).collect();
    first.append(&batches).unwrap();
    let length = size(&first);
    let unreadable = fs::OpenOptions::new().write(true).open(&first.path);
    assert!(matches!(
        OpenSpill::scan(unreadable.unwrap()),
        Err(SpillError::Io(_))
    ));
    assert_eq!(size(&first), length);
}

#[test]
fn damage_while_the_file_is_closed_is_counted_per_event() {
    let folder = folder();
    let mut spill = spill(&folder, 1 << 20);
    let batches: Vec<_> = (7..10).map(|number| batch(number, 100)).collect();
    spill.append(&batches).unwrap();
    spill.fail_next_read();
    assert!(spill.oldest().is_err());
    let bytes = fs::read(&spill.path).unwrap();
    fs::write(&spill.path, &bytes[..HEADER + 100 + 3]).unwrap();
    assert_eq!(drained(&mut spill), batches[..1]);
    assert_eq!(
        spill.take_damaged(),
        u64::from(batches[1].events + batches[2].events)
    );
}

proptest! {
    /// Wherever a crash tears the file, exactly the records before that are
    /// sent.
    #[test]
    fn a_torn_file_returns_all_complete_records(
        lengths in proptest::collection::vec(8_usize..200, 1..6), cut in 0_usize..1300,
    ) {
        let folder = folder();
        let mut first = spill(&folder, 1 << 20);
        let batches: Vec<_> = (0..).zip(&lengths).map(|(at, length)| batch(at, *length)).collect();
        first.append(&batches).unwrap();
        let path = first.path.clone();
        drop(first);
        let bytes = fs::read(&path).unwrap();
        let cut = cut.min(bytes.len());
        fs::write(&path, &bytes[..cut]).unwrap();

        let mut end = 0;
        let whole = lengths.iter().take_while(|length| {
            end += HEADER + **length;
            end <= cut
        });
        let whole = whole.count();
        let mut second = spill(&folder, 1 << 20);
        second.open().unwrap();
        let before: usize = lengths[..whole].iter().map(|length| HEADER + length).sum();
        prop_assert_eq!(second.take_damaged() > 0, cut > before);
        prop_assert_eq!(second.append(&[batch(99, 50)]).unwrap(), 1);
        let mut expected = batches[..whole].to_vec();
        expected.push(batch(99, 50));
        prop_assert_eq!(drained(&mut second), expected);
    }

    #[test]
    fn any_file_content_is_accepted(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
        let folder = folder();
        let mut spill = spill(&folder, 1 << 20);
        fs::write(&spill.path, &bytes).unwrap();
        spill.open().unwrap();
        let _ = spill.oldest().unwrap();
        let _ = drained(&mut spill);
        prop_assert_eq!(size(&spill), 0);
    }
}
