use super::Word;
use crate::allow_list::Tolerated;

/// Folders in which these phrases are still used.
pub(super) const TOLERATED: &[Tolerated] = &[];

const fn word(phrase: &'static str, instead: &'static str) -> Word {
    Word {
        phrase,
        instead,
        except: &[],
    }
}

/// Phrases that are not used, with what replaces them.
pub(super) const WORDS: &[Word] = &[
    word("namesake", "duplicate replica"),
    word("namesakes", "duplicate replicas"),
    word("rival", "duplicate replica"),
    word("rivals", "duplicate replicas"),
    Word {
        phrase: "poison",
        instead: "rejected event",
        except: &["poison error"],
    },
    word("poisoned", "rejected"),
    word("dearest", "most expensive"),
    word("handful", "a number"),
    word("leftover", "orphan, stale"),
    word("leftovers", "orphans, stale objects"),
    word("last words", "final log lines, shutdown"),
    word("first login", "bootstrap admin"),
    word("patience", "timeout"),
    word("spoken", "audio, speech"),
    word("left alone", "ejected"),
    word("leave alone", "eject, do not change"),
    word("leaves alone", "ejects, does not change"),
    word("set aside", "reserve, reserved"),
    word("sets aside", "reserves"),
    word("given back", "released, returned"),
    word("gives back", "releases, returns"),
    word("give back", "release, return"),
    word("given again", "served from the cache"),
    word("give again", "serve from the cache"),
    word("gives again", "serves from the cache"),
    word("kept answer", "cached response"),
    word("kept answers", "cached responses"),
    word("broke off", "disconnected, aborted"),
    word("broken off", "aborted"),
    word("breaks off", "disconnects, aborts"),
    word("break off", "disconnect, abort"),
    word("broke it off", "aborted it"),
    word("followed again", "reconnected"),
    word("held up", "delayed"),
    word("says no", "rejects"),
    word("say no", "reject"),
    Word {
        phrase: "is told",
        instead: "receives, is notified",
        except: &["is told apart"],
    },
    Word {
        phrase: "are told",
        instead: "receive, are notified",
        except: &["are told apart"],
    },
    Word {
        phrase: "was told",
        instead: "received, was notified",
        except: &["was told apart"],
    },
    word("tells of", "reports"),
    word("told apart", "distinguished"),
    word("tell apart", "distinguish"),
    word("tells apart", "distinguishes"),
    word("the standing", "the limits state"),
    word("standing json", "limits-state.json"),
    word("asked again", "retried, sent again"),
    word("is asked", "receives a request, is queried"),
    word("are asked", "receive a request, are queried"),
    word("an answer", "a response"),
    word("the answer", "the response"),
    word("answers of", "responses of"),
    word("look ups", "lookups"),
    word("most at once", "concurrency limit"),
    word("nobody knows", "is unknown"),
    Word {
        phrase: "holder",
        instead: "subject (of limits), owner",
        except: &["lease holder", "holder identity", "lock holder"],
    },
    Word {
        phrase: "holders",
        instead: "subjects (of limits), owners",
        except: &["lease holders"],
    },
    word("goes on as", "continues as"),
];
