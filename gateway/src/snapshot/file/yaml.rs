//! YAML as a tree whose nodes have positions.
//!
//! Built on the events of `granit-parser`: pure Rust, maintained, a position
//! with each event, bounded nesting. A serde deserializer would stop at the
//! first error and lose the positions of keys, whereas all problems of the file
//! must be reported at once.

mod sections;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use granit_parser::{Event, Parser, ScalarStyle, Span};

use self::sections::join;
pub(super) use self::sections::{join_sections, without_section};
use super::problem::{Place, Problem, Problems, Severity};

/// Maximum nesting depth of nodes, including aliases.
const DEEPEST: usize = 32;

/// Maximum number of nodes; nodes of an alias count each time it is used.
const MAX_NODES: usize = 1 << 20;

/// LiteLLM's prefix for a reference to an environment variable.
const REFERENCE: &str = "os.environ/";

/// Maximum number of sections of a file that are given more than once.
const MAX_REPEATED: usize = 16;

/// A value in the file.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) kind: NodeKind,
    /// Number of nodes in it, including itself.
    size: usize,
    depth: usize,
}

#[derive(Debug)]
pub(super) enum NodeKind {
    /// `plain` means without quotes.
    Scalar {
        text: String,
        plain: bool,
    },
    Reference(Reference),
    Sequence(Vec<Arc<Node>>),
    /// Each name occurs once.
    Mapping(Vec<MappingEntry>),
}

/// A scalar that stands for the value of an environment variable.
#[derive(Debug)]
pub(super) struct Reference {
    text: String,
    /// The value; `None` if the variable is unset or empty.
    value: OnceLock<Option<String>>,
}

impl Reference {
    /// The name of the variable.
    pub(super) fn variable(&self) -> &str {
        self.text.strip_prefix(REFERENCE).unwrap_or_default()
    }

    /// The value of the variable, which is looked up once.
    pub(super) fn value(&self, look_up: impl FnOnce(&str) -> Option<String>) -> Option<&str> {
        let value = self.value.get_or_init(|| look_up(self.variable()));
        value.as_deref()
    }
}

/// A member of a mapping.
#[derive(Debug, Clone)]
pub(super) struct MappingEntry {
    pub(super) name: String,
    /// Position of the name.
    pub(super) place: Place,
    pub(super) value: Arc<Node>,
}

impl Node {
    fn new(place: Place, kind: NodeKind) -> Self {
        let (mut size, mut depth) = (1_usize, 0);
        let mut count = |child: &Node| {
            size = size.saturating_add(child.size);
            depth = depth.max(child.depth);
        };
        match &kind {
            NodeKind::Scalar { .. } | NodeKind::Reference(_) => {}
            NodeKind::Sequence(items) => items.iter().for_each(|item| count(item)),
            NodeKind::Mapping(entries) => entries.iter().for_each(|entry| count(&entry.value)),
        }
        Self {
            place,
            kind,
            size,
            depth: depth + 1,
        }
    }

    /// No value: `null`, `~` or an empty scalar.
    pub(super) fn is_null(&self) -> bool {
        match &self.kind {
            NodeKind::Scalar { text, plain: true } => {
                matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL")
            }
            _ => false,
        }
    }
}

/// A collection that is being read.
enum OpenCollection {
    Sequence {
        items: Vec<Arc<Node>>,
    },
    Mapping {
        entries: Vec<MappingEntry>,
        names: HashSet<String>,
        /// A name whose value follows.
        name: Option<(String, Place)>,
    },
}

/// An error at one position that stops the read.
struct Fault {
    place: Place,
    message: String,
}

struct Loader<'p> {
    open: Vec<(OpenCollection, Place, usize)>,
    anchors: HashMap<usize, Arc<Node>>,
    root: Option<Arc<Node>>,
    nodes: usize,
    /// Number of sections that were repeated.
    repeated: usize,
    problems: &'p mut Problems,
}

/// Reads one document, of the file with this number. Errors are added to `problems`; returns `None` if the
/// document cannot be read at all.
pub(super) fn load(text: &str, file: usize, problems: &mut Problems) -> Option<Arc<Node>> {
    let mut loader = Loader {
        open: Vec::new(),
        anchors: HashMap::new(),
        root: None,
        nodes: 0,
        repeated: 0,
        problems,
    };
    for event in Parser::new_from_str(text) {
        let taken = match event {
            Ok((event, span)) => loader.take(event, place(file, &span)),
            Err(error) => Err(Fault {
                place: Place {
                    file,
                    line: error.marker().line().max(1),
                    column: error.marker().col() + 1,
                },
                message: format!("not YAML: {}", error.info()),
            }),
        };
        if let Err(Fault { place, message }) = taken {
            let path = loader.path();
            loader.error(place, path, message);
            return None;
        }
    }
    if loader.root.is_none() {
        let start = Place {
            file,
            ..Place::START
        };
        loader.error(start, String::new(), "the file is empty".to_owned());
    }
    loader.root
}

fn place(file: usize, span: &Span) -> Place {
    Place {
        file,
        line: span.start.line().max(1),
        column: span.start.col() + 1,
    }
}

/// A member's path below its mapping. Names that could break the line format of
/// the output are quoted and truncated.
pub(super) fn member(path: &str, name: &str) -> String {
    const MAX_BYTES: usize = 64;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-/.".contains(&byte);
    let dot = if path.is_empty() { "" } else { "." };
    if !name.is_empty() && name.len() <= MAX_BYTES && name.bytes().all(plain) {
        format!("{path}{dot}{name}")
    } else {
        let cut: String = name.chars().take(MAX_BYTES).collect();
        format!("{path}{dot}{cut:?}")
    }
}

impl Loader<'_> {
    fn error(&mut self, place: Place, path: String, message: String) {
        self.problems.push(Problem {
            severity: Severity::Error,
            place,
            path,
            message,
        });
    }

    /// Path of the node that is being read.
    fn path(&self) -> String {
        self.open
            .iter()
            .fold(String::new(), |path, (open, _, _)| match open {
                OpenCollection::Sequence { items } => format!("{path}[{}]", items.len()),
                OpenCollection::Mapping {
                    name: Some((name, _)),
                    ..
                } => member(&path, name),
                OpenCollection::Mapping { name: None, .. } => path,
            })
    }

    fn take(&mut self, event: Event<'_>, place: Place) -> Result<(), Fault> {
        let fault = |message: &str| {
            Err(Fault {
                place,
                message: message.to_owned(),
            })
        };
        if event.tag().is_some_and(|tag| !tag.is_yaml_core_schema()) {
            return fault("tags other than YAML's own are not supported");
        }
        match event {
            Event::DocumentStart(..) if self.root.is_some() => {
                fault("a second document: only one is read")
            }
            Event::Scalar(text, style, anchor, _) => {
                let text = text.into_owned();
                let kind = if text.starts_with(REFERENCE) {
                    let value = OnceLock::new();
                    NodeKind::Reference(Reference { text, value })
                } else {
                    let plain = style == ScalarStyle::Plain;
                    NodeKind::Scalar { text, plain }
                };
                self.complete(Node::new(place, kind), anchor)
            }
            Event::SequenceStart(_, anchor, _) => {
                let items = Vec::new();
                self.begin(OpenCollection::Sequence { items }, place, anchor)
            }
            Event::MappingStart(_, anchor, _) => {
                let open = OpenCollection::Mapping {
                    entries: Vec::new(),
                    names: HashSet::new(),
                    name: None,
                };
                self.begin(open, place, anchor)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => match self.anchors.get(&anchor).cloned() {
                Some(node) => {
                    self.count(node.size, place)?;
                    self.add(node, place)
                }
                None => fault("an alias inside of what it stands for"),
            },
            _ => Ok(()),
        }
    }

    fn begin(&mut self, open: OpenCollection, place: Place, anchor: usize) -> Result<(), Fault> {
        if let Some((OpenCollection::Mapping { name: None, .. }, _, _)) = self.open.last() {
            return Err(Fault {
                place,
                message: "a name must be a text".to_owned(),
            });
        }
        if self.open.len() >= DEEPEST {
            return Err(too_deep(place));
        }
        self.open.push((open, place, anchor));
        Ok(())
    }

    fn end(&mut self) -> Result<(), Fault> {
        let Some((open, place, anchor)) = self.open.pop() else {
            return Ok(());
        };
        let kind = match open {
            OpenCollection::Sequence { items } => NodeKind::Sequence(items),
            OpenCollection::Mapping { entries, .. } => NodeKind::Mapping(self.merged(entries)?),
        };
        self.complete(Node::new(place, kind), anchor)
    }

    /// Bounds the size of the tree that a small file can produce with aliases.
    fn count(&mut self, nodes: usize, place: Place) -> Result<(), Fault> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > MAX_NODES {
            let message = format!("more than {MAX_NODES} values, aliases followed");
            return Err(Fault { place, message });
        }
        Ok(())
    }

    fn complete(&mut self, node: Node, anchor: usize) -> Result<(), Fault> {
        let place = node.place;
        self.count(1, place)?;
        let node = Arc::new(node);
        if anchor != 0 {
            self.anchors.insert(anchor, Arc::clone(&node));
        }
        self.add(node, place)
    }

    /// Adds a node to its parent; `place` is its position, which differs from
    /// the node's own if an alias refers to it.
    fn add(&mut self, node: Arc<Node>, place: Place) -> Result<(), Fault> {
        if self.open.len() + node.depth > DEEPEST {
            return Err(too_deep(place));
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some((OpenCollection::Sequence { items }, _, _)) => items.push(node),
            Some((OpenCollection::Mapping { name, .. }, _, _)) if name.is_none() => {
                match &node.kind {
                    NodeKind::Scalar { text, .. } | NodeKind::Reference(Reference { text, .. }) => {
                        *name = Some((text.clone(), place));
                    }
                    NodeKind::Sequence(_) | NodeKind::Mapping(_) => {
                        let message = "a name must be a text".to_owned();
                        return Err(Fault { place, message });
                    }
                }
            }
            Some((
                OpenCollection::Mapping {
                    entries,
                    names,
                    name,
                },
                _,
                _,
            )) => {
                let Some((name, place)) = name.take() else {
                    return Ok(());
                };
                let entry = MappingEntry {
                    name,
                    place,
                    value: node,
                };
                if names.insert(entry.name.clone()) {
                    entries.push(entry);
                } else {
                    self.repeat(entry);
                }
            }
        }
        Ok(())
    }

    /// Adds a member whose mapping has one of the same name. A section of the
    /// file is added to the earlier one; any other member is an error.
    fn repeat(&mut self, again: MappingEntry) {
        let MappingEntry { name, place, value } = again;
        let path = member(&self.path(), &name);
        let section = match self.open.as_mut_slice() {
            [(OpenCollection::Mapping { entries, .. }, _, _)] if self.repeated < MAX_REPEATED => {
                entries.iter_mut().find(|entry| entry.name == name)
            }
            _ => None,
        };
        let Some(joined) = section.and_then(|entry| join(&mut entry.value, &value)) else {
            return self.error(place, path, "given twice".to_owned());
        };
        self.repeated += 1;
        for MappingEntry { name, place, .. } in joined {
            self.error(place, member(&path, &name), "given twice".to_owned());
        }
        self.problems.push(Problem {
            severity: Severity::Warning,
            place,
            path,
            message: "given twice: both are used, whereas LiteLLM ignores the first".to_owned(),
        });
    }

    /// Resolves `<<`: adds the members of other mappings that are not present
    /// yet.
    fn merged(&mut self, mut entries: Vec<MappingEntry>) -> Result<Vec<MappingEntry>, Fault> {
        let Some(at) = entries.iter().position(|entry| entry.name == "<<") else {
            return Ok(entries);
        };
        let MappingEntry { place, value, .. } = entries.remove(at);
        let wrong = || Fault {
            place,
            message: "`<<` wants a mapping, or a list of them".to_owned(),
        };
        let alone = [Arc::clone(&value)];
        let sources = match &value.kind {
            NodeKind::Sequence(items) => items.as_slice(),
            NodeKind::Mapping(_) => &alone,
            NodeKind::Scalar { .. } | NodeKind::Reference(_) => return Err(wrong()),
        };
        let mut names: HashSet<String> = entries.iter().map(|entry| entry.name.clone()).collect();
        for source in sources {
            let NodeKind::Mapping(more) = &source.kind else {
                return Err(wrong());
            };
            self.count(source.size, place)?;
            for entry in more {
                if names.insert(entry.name.clone()) {
                    entries.push(entry.clone());
                }
            }
        }
        Ok(entries)
    }
}

fn too_deep(place: Place) -> Fault {
    Fault {
        place,
        message: format!("nested deeper than {DEEPEST} levels, aliases followed"),
    }
}
