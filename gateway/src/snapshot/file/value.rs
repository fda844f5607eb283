//! Reading of the tree: each value has a path, and problems are reported with
//! it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::str::FromStr;

use fastllm_contract::ModelName;

use super::problem::{Place, Problem, Problems, Severity};
use super::yaml::{MappingEntry, Node, NodeKind, member};

/// State collected while one file is read.
pub(super) struct Context<'a> {
    environment: &'a dyn Fn(&str) -> Option<String>,
    /// Variables that the file sets; they precede the environment.
    variables: RefCell<HashMap<String, String>>,
    problems: RefCell<Problems>,
    in_entry: Cell<bool>,
    spoilt: Cell<bool>,
}

impl<'a> Context<'a> {
    pub(super) fn new(environment: &'a dyn Fn(&str) -> Option<String>, before: Problems) -> Self {
        Self {
            environment,
            variables: RefCell::default(),
            spoilt: Cell::new(before.errors() > 0),
            problems: RefCell::new(before),
            in_entry: Cell::new(false),
        }
    }

    /// The value of a variable that the file or the environment sets. It is not
    /// empty.
    pub(super) fn variable(&self, name: &str) -> Option<String> {
        self.set_variable(name).filter(|value| !value.is_empty())
    }

    /// The value of a variable, which may be empty.
    pub(super) fn set_variable(&self, name: &str) -> Option<String> {
        let of_file = self.variables.borrow().get(name).cloned();
        of_file.or_else(|| (self.environment)(name))
    }

    /// Sets the variables of the file.
    pub(super) fn set_variables(&self, variables: HashMap<String, String>) {
        *self.variables.borrow_mut() = variables;
    }

    /// Reads one optional entry of a list: an entry that has errors is skipped.
    pub(super) fn entry<T>(&self, read: impl FnOnce() -> Option<T>) -> Option<T> {
        let errors = self.problems.borrow().errors();
        let outer = self.in_entry.replace(true);
        let entry = read();
        self.in_entry.set(outer);
        entry.filter(|_| self.problems.borrow().errors() == errors)
    }

    fn say(&self, severity: Severity, span: SourceSpan, message: String) {
        if severity == Severity::Error && !self.in_entry.get() {
            self.spoilt.set(true);
        }
        let SourceSpan { place, path } = span;
        self.problems.borrow_mut().push(Problem {
            severity,
            place,
            path,
            message,
        });
    }

    /// The text of a scalar; reports no problem.
    fn text<'n>(&self, node: &'n Node) -> Option<&'n str> {
        match &node.kind {
            NodeKind::Scalar { text, .. } => Some(text),
            NodeKind::Reference(reference) => reference.value(|name| self.variable(name)),
            NodeKind::Sequence(_) | NodeKind::Mapping(_) => None,
        }
    }

    /// Reports an error in an entry that was read earlier.
    pub(super) fn entry_error(&self, span: SourceSpan, message: impl Into<String>) {
        self.entry(|| {
            self.say(Severity::Error, span, message.into());
            None::<()>
        });
    }

    /// Reports an error that makes the whole file unusable, also if it is in an
    /// entry.
    pub(super) fn refuse(&self, span: SourceSpan, message: impl Into<String>) {
        self.spoilt.set(true);
        self.say(Severity::Error, span, message.into());
    }

    /// Reports that something read earlier has no effect.
    pub(super) fn warning(&self, span: SourceSpan, message: impl Into<String>) {
        self.say(Severity::Warning, span, message.into());
    }

    /// Reports an error that makes the whole file unusable.
    pub(super) fn file_error(&self, message: impl Into<String>) {
        self.say(Severity::Error, SourceSpan::FILE, message.into());
    }

    /// Reports a warning about the whole file.
    pub(super) fn file_warning(&self, message: impl Into<String>) {
        self.say(Severity::Warning, SourceSpan::FILE, message.into());
    }

    /// The problems, sorted by position, and whether the file cannot be used.
    pub(super) fn into_problems(self) -> (Problems, bool) {
        let mut problems = self.problems.into_inner();
        problems.sort();
        (problems, self.spoilt.get())
    }
}

/// Where a value was read, for problems that are found later.
#[derive(Debug, Clone)]
pub(super) struct SourceSpan {
    pub(super) place: Place,
    pub(super) path: String,
}

impl SourceSpan {
    const FILE: Self = Self {
        place: Place::START,
        path: String::new(),
    };
}

/// A value and its path.
#[derive(Clone)]
pub(super) struct Value<'a> {
    pub(super) context: &'a Context<'a>,
    node: &'a Node,
    path: String,
}

impl<'a> Value<'a> {
    pub(super) fn root(context: &'a Context<'a>, node: &'a Node) -> Self {
        Self {
            context,
            node,
            path: String::new(),
        }
    }

    pub(super) fn span(&self) -> SourceSpan {
        SourceSpan {
            place: self.node.place,
            path: self.path.clone(),
        }
    }

    pub(super) fn error(&self, message: impl Into<String>) {
        self.context
            .say(Severity::Error, self.span(), message.into());
    }

    pub(super) fn warning(&self, message: impl Into<String>) {
        self.context.warning(self.span(), message);
    }

    /// Reports an error that makes the whole file unusable, also if it is in an
    /// entry.
    pub(super) fn refuse(&self, message: impl Into<String>) {
        self.context.refuse(self.span(), message);
    }

    /// The text of a member; reports no problem.
    pub(super) fn peek(&self, name: &str) -> Option<&'a str> {
        self.member(name)?.peek_text()
    }

    /// The text of a scalar; reports no problem.
    pub(super) fn peek_text(&self) -> Option<&'a str> {
        self.context.text(self.node)
    }

    /// The members of a mapping; empty for any other value, and reports no
    /// problem.
    pub(super) fn peek_members(&self) -> Vec<(&'a str, Value<'a>)> {
        if self.is_mapping() {
            self.members()
        } else {
            Vec::new()
        }
    }

    /// The items of a list, or a single value as the only one.
    pub(super) fn items_or_one(&self) -> Vec<Value<'a>> {
        if self.is_list() {
            self.items()
        } else {
            vec![self.clone()]
        }
    }

    /// A member; reports no problem.
    pub(super) fn member(&self, name: &str) -> Option<Self> {
        let NodeKind::Mapping(entries) = &self.node.kind else {
            return None;
        };
        let entry = entries.iter().find(|entry| entry.name == name)?;
        Some(self.child(&entry.value, member(&self.path, name)))
    }

    pub(super) fn is_null(&self) -> bool {
        self.node.is_null()
    }

    pub(super) fn is_scalar(&self) -> bool {
        is_scalar(self.node)
    }

    fn is_mapping(&self) -> bool {
        matches!(self.node.kind, NodeKind::Mapping(_))
    }

    pub(super) fn is_list(&self) -> bool {
        matches!(self.node.kind, NodeKind::Sequence(_))
    }

    /// Reads a mapping; warns about members that `read` does not take.
    pub(super) fn fields<T>(&self, read: impl FnOnce(&mut MappingReader<'a>) -> T) -> Option<T> {
        let NodeKind::Mapping(entries) = &self.node.kind else {
            self.error("expected a mapping");
            return None;
        };
        let mut fields = MappingReader {
            of: self.clone(),
            left: entries.iter().collect(),
        };
        let value = read(&mut fields);
        for entry in &fields.left {
            fields.warn(entry, "unknown field");
        }
        Some(value)
    }

    /// The members of a mapping with arbitrary names.
    pub(super) fn members(&self) -> Vec<(&'a str, Value<'a>)> {
        let NodeKind::Mapping(entries) = &self.node.kind else {
            self.error("expected a mapping");
            return Vec::new();
        };
        let value =
            |entry: &'a MappingEntry| self.child(&entry.value, member(&self.path, &entry.name));
        entries
            .iter()
            .map(|entry| (entry.name.as_str(), value(entry)))
            .collect()
    }

    /// The items of a list.
    pub(super) fn items(&self) -> Vec<Value<'a>> {
        let NodeKind::Sequence(items) = &self.node.kind else {
            self.error("expected a list");
            return Vec::new();
        };
        items
            .iter()
            .enumerate()
            .map(|(index, item)| self.child(item, format!("{}[{index}]", self.path)))
            .collect()
    }

    fn child(&self, node: &'a Node, path: String) -> Self {
        Self {
            context: self.context,
            node,
            path,
        }
    }

    /// The text of a scalar, or the value of the environment variable that it
    /// refers to.
    pub(super) fn text(&self) -> Option<&'a str> {
        let text = self.context.text(self.node);
        match &self.node.kind {
            NodeKind::Reference(reference) if text.is_none() => {
                let variable = member("", reference.variable());
                self.error(format!("the environment variable {variable} is not set"));
            }
            NodeKind::Sequence(_) | NodeKind::Mapping(_) => self.error("expected a text"),
            NodeKind::Scalar { .. } | NodeKind::Reference(_) => {}
        }
        text
    }

    /// Parses a text; the error message does not repeat the text.
    pub(super) fn parsed<T: FromStr<Err: ToString>>(&self) -> Option<T> {
        let parsed = self.text()?.parse();
        parsed
            .map_err(|error: T::Err| self.error(error.to_string()))
            .ok()
    }

    pub(super) fn model_name(&self) -> Option<ModelName> {
        let name = ModelName::new(self.text()?);
        name.map_err(|error| self.error(error.to_string())).ok()
    }

    pub(super) fn number<T: TryFrom<u64>>(&self, range: RangeInclusive<u64>) -> Option<T> {
        let number = self.text()?.parse().ok();
        let fitting = number
            .filter(|number| range.contains(number))
            .and_then(|number| T::try_from(number).ok());
        if fitting.is_none() {
            let (least, most) = range.into_inner();
            self.error(if most == u64::MAX {
                format!("expected a whole number, {least} or more")
            } else {
                format!("expected a whole number from {least} to {most}")
            });
        }
        fitting
    }

    /// Whether the value switches something off: `false`, an empty list or an
    /// empty mapping.
    pub(super) fn is_off(&self) -> bool {
        match &self.node.kind {
            NodeKind::Sequence(items) => items.is_empty(),
            NodeKind::Mapping(entries) => entries.is_empty(),
            NodeKind::Scalar { .. } | NodeKind::Reference(_) => {
                let text = self.context.text(self.node);
                matches!(text, Some("false" | "False" | "FALSE"))
            }
        }
    }

    /// A number that need not be whole.
    pub(super) fn decimal(&self, range: RangeInclusive<f64>) -> Option<f64> {
        let number = self.text()?.parse().ok();
        let fitting = number.filter(|number| range.contains(number));
        if fitting.is_none() {
            let (least, most) = range.into_inner();
            self.error(format!("expected a number from {least} to {most}"));
        }
        fitting
    }

    pub(super) fn flag(&self) -> Option<bool> {
        match self.text()? {
            "true" | "True" | "TRUE" => Some(true),
            "false" | "False" | "FALSE" => Some(false),
            _ => {
                self.error("expected true or false");
                None
            }
        }
    }
}

fn is_scalar(node: &Node) -> bool {
    matches!(node.kind, NodeKind::Scalar { .. } | NodeKind::Reference(_))
}

/// A member of a mapping.
pub(super) struct Member<'a> {
    pub(super) name: &'a str,
    /// Where its name is.
    pub(super) span: SourceSpan,
    pub(super) value: Value<'a>,
}

/// The members of a mapping that are not read yet.
pub(super) struct MappingReader<'a> {
    of: Value<'a>,
    left: Vec<&'a MappingEntry>,
}

impl<'a> MappingReader<'a> {
    /// The member with this name, unless it is null.
    pub(super) fn take(&mut self, name: &str) -> Option<Value<'a>> {
        let at = self.left.iter().position(|entry| entry.name == name)?;
        let entry = self.left.remove(at);
        if entry.value.is_null() {
            return None;
        }
        let path = member(&self.of.path, name);
        Some(self.of.child(&entry.value, path))
    }

    /// The required member of this name.
    pub(super) fn required(&mut self, name: &str) -> Option<Value<'a>> {
        let value = self.take(name);
        if value.is_none() {
            self.of.error(format!("{name} is missing"));
        }
        value
    }

    /// The items of a list; empty if there is no list.
    pub(super) fn list(&mut self, name: &str) -> Vec<Value<'a>> {
        self.take(name).map(|list| list.items()).unwrap_or_default()
    }

    /// The member that has one of these names, which are synonyms.
    pub(super) fn take_any(&mut self, names: &[&str]) -> Option<Value<'a>> {
        let mut taken = None;
        for name in names {
            let Some(value) = self.take(name) else {
                continue;
            };
            match &taken {
                None => taken = Some((name, value)),
                Some((first, _)) => {
                    value.error(format!("the same as {first}, which is given, too"));
                }
            }
        }
        Some(taken?.1)
    }

    /// Takes every remaining member whose name `select` accepts, unless it is
    /// null.
    pub(super) fn drain(&mut self, mut select: impl FnMut(&str) -> bool) -> Vec<Member<'a>> {
        let selected = self.left.extract_if(.., |entry| select(&entry.name));
        let selected: Vec<_> = selected.filter(|entry| !entry.value.is_null()).collect();
        let of = |entry: &'a MappingEntry| Member {
            name: &entry.name,
            span: self.span_of(entry),
            value: self
                .of
                .child(&entry.value, member(&self.of.path, &entry.name)),
        };
        selected.into_iter().map(of).collect()
    }

    fn span_of(&self, entry: &MappingEntry) -> SourceSpan {
        SourceSpan {
            place: entry.place,
            path: member(&self.of.path, &entry.name),
        }
    }

    fn warn(&self, entry: &MappingEntry, message: &str) {
        self.of.context.warning(self.span_of(entry), message);
    }

    /// The mapping as a whole.
    pub(super) fn value(&self) -> Value<'a> {
        self.of.clone()
    }

    /// Adds the members of another mapping that are not present.
    pub(super) fn supplement(&mut self, with: &Value<'a>) {
        let NodeKind::Mapping(entries) = &with.node.kind else {
            return with.error("expected a mapping");
        };
        for entry in entries {
            if self.of.member(&entry.name).is_none_or(|own| own.is_null()) {
                self.left.retain(|left| left.name != entry.name);
                self.left.push(entry);
            }
        }
    }

    /// Reports an error in the mapping as a whole.
    pub(super) fn error(&self, message: impl Into<String>) {
        self.of.error(message);
    }

    pub(super) fn span(&self) -> SourceSpan {
        self.of.span()
    }
}
