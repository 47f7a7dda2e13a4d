//! Whether a pod's containers come to mpsgate at all: its RuntimeClass names a handler, and each
//! node says which of its handlers lead here. For the extender and the admission webhook, because
//! no node of ours ever hears of a container that bypasses mpsgate.
//!
//! A node's word steers pods away from itself, and vetoes nobody elsewhere: where an extender
//! places a pod, [`Known::closed`] leaves out the nodes that bypass. Nobody steers any other pod.
//!
//! | the class's handler is | nobody steers | an extender places it |
//! |---|---|---|
//! | led on each node that counts | – | – |
//! | a bypass on some of them | refused | steered past these |
//! | a bypass on each of them | refused | refused |
//! | unknown on one, or the class is | warned of | warned of |
//!
//! Without a class, by each node's default handler, what is refused here is warned of.
//!
//! What counts are the nodes that a label switches, and that the pod may go to: what `nodeSelector`
//! and required node affinity leave, with what the class adds to them. Taints and cordons do not
//! count, as they come and go, and a pod's tolerations grow. What is too much or too odd to be
//! looked at leaves every node. Of a pod that names its node that one alone counts, with a label or
//! without.

use std::collections::{BTreeMap, BTreeSet};

use mpsgate_model::printable::few;
use mpsgate_model::{Code, GpuNode, HandlerReport, Refusal, RuntimeClass};

use crate::cards::Cards;

/// More expressions than a pod has of them are not compared with each node.
const MOST: usize = 256;
/// Nodes that a sentence names.
const NAMED: usize = 3;

/// What is known of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    /// The RuntimeClasses by name; `None` while they were never listed.
    pub classes: Option<BTreeMap<String, RuntimeClass>>,
    /// The nodes with cards of mpsgate's, by name.
    pub nodes: BTreeMap<String, GpuNode>,
    /// What these cards have.
    pub cards: Cards,
}

/// Where a pod may go, in its own words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Where {
    /// `nodeName`.
    pub node: Option<String>,
    /// `nodeSelector`.
    pub selector: BTreeMap<String, String>,
    /// Required node affinity: one term is enough. Empty: there is none.
    pub terms: Vec<Term>,
}

/// Who chooses a pod's node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placer {
    /// A kube-scheduler that asks our extender.
    Extender,
    /// Its author, or a scheduler that asks nobody of ours.
    Other,
}

/// The nodes that a pod is kept from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Closed {
    nodes: BTreeSet<String>,
    why: String,
}

impl Closed {
    /// Why a node does not do, without its name; `None` where it does.
    #[must_use]
    pub fn reason(&self, node: &str) -> Option<&str> {
        self.nodes.contains(node).then_some(self.why.as_str())
    }
}

/// All of it has to hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Term {
    /// Of labels.
    pub labels: Vec<Expression>,
    /// Of fields, of which there is one: `metadata.name`.
    pub fields: Vec<Expression>,
}

/// `key operator values`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expression {
    /// A label, or a field.
    pub key: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`; another is taken to hold.
    pub operator: String,
    /// What it is compared with.
    pub values: Vec<String>,
}

/// How a pod's way stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through mpsgate, or to no node of ours.
    Fine,
    /// Bypasses it, though it names no class.
    Default(Refusal),
    /// Bypasses it, by its class.
    Bypass(Refusal),
    /// Nobody knows.
    Unknown(Refusal),
}

impl Expression {
    fn holds(&self, found: Option<&str>) -> bool {
        let is_in = || found.is_some_and(|found| self.values.iter().any(|value| value == found));
        match self.operator.as_str() {
            "In" => is_in(),
            "NotIn" => !is_in(),
            "Exists" => found.is_some(),
            "DoesNotExist" => found.is_none(),
            _ => true,
        }
    }
}

impl Where {
    /// Whether it is little enough to be compared with every node.
    fn is_readable(&self) -> bool {
        let of_term = |term: &Term| {
            let all = term.labels.iter().chain(&term.fields);
            all.map(|one| 1 + one.values.len()).fold(1, usize::saturating_add)
        };
        self.terms.iter().map(of_term).fold(0, usize::saturating_add) <= MOST
    }

    /// Its terms, where there are any and they are compared. Asked once for a pod: to count them
    /// takes as long as its author likes.
    fn compared(&self) -> Option<&[Term]> {
        (!self.terms.is_empty() && self.is_readable()).then_some(self.terms.as_slice())
    }

    /// Whether what a node says counts for a pod, whose `terms` are those of [`Self::compared`].
    fn counts(
        &self,
        terms: Option<&[Term]>,
        class: Option<&RuntimeClass>,
        name: &str,
        node: &GpuNode,
    ) -> bool {
        (self.node.is_some() || node.is_switched) && self.leaves(terms, class, name, node)
    }

    /// Whether it leaves a node, with a label or without.
    fn leaves(
        &self,
        terms: Option<&[Term]>,
        class: Option<&RuntimeClass>,
        name: &str,
        node: &GpuNode,
    ) -> bool {
        if let Some(only) = &self.node {
            return only == name;
        }
        let label = |key: &str| node.labels.get(key).map(String::as_str);
        let has = |(key, value): (&String, &String)| label(key) == Some(value.as_str());
        if !self.selector.iter().chain(class.iter().flat_map(|class| &class.selector)).all(has) {
            return false;
        }
        let field = |key: &str| (key == "metadata.name").then_some(name);
        let fits = |term: &Term| {
            term.labels.iter().all(|one| one.holds(label(&one.key)))
                && term.fields.iter().all(|one| one.holds(field(&one.key)))
        };
        terms.is_none_or(|terms| terms.iter().any(fits))
    }
}

impl Known {
    /// The nodes that a pod of that class is kept from, where an extender places it: those that say
    /// that its containers would bypass mpsgate there. A word that is not known keeps it from none.
    ///
    /// # Errors
    /// Its class has not been heard of, so that nobody knows which nodes these are.
    pub fn closed(&self, class: Option<&str>) -> Result<Closed, String> {
        let mut saying = self
            .nodes
            .iter()
            .filter_map(|(name, node)| Some((name, node.handlers.as_ref().ok()?)))
            .filter(|(_, said)| !said.round.is_empty())
            .peekable();
        if saying.peek().is_none() {
            return Ok(Closed::default());
        }
        let known = |name: &str| match &self.classes {
            None => Err("the cluster's RuntimeClasses are not known yet; try again".to_owned()),
            Some(all) => all
                .get(name)
                .ok_or_else(|| "its pod's RuntimeClass is not known yet; try again".to_owned()),
        };
        let class = class.map(known).transpose()?.filter(|class| !class.handler.is_empty());
        let bypasses = |said: &HandlerReport| {
            let handler =
                class.map_or(said.default.as_deref(), |class| Some(class.handler.as_str()));
            handler.is_some_and(|handler| said.round.contains(handler))
        };
        let nodes = saying.filter(|(_, said)| bypasses(said)).map(|(name, _)| name.clone());
        let why = match class {
            Some(class) => format!(
                "its handler {} bypasses mpsgate, and the pod's RuntimeClass names it",
                class.handler
            ),
            None => {
                "its default handler bypasses mpsgate, and the pod has no RuntimeClass".to_owned()
            }
        };
        Ok(Closed { nodes: nodes.collect(), why })
    }

    /// The handler that a class names, where a pod names a class; or why that is not known, and
    /// what to do.
    fn handler(&self, class: Option<&str>) -> Result<Option<&str>, (String, String)> {
        let Some(name) = class else { return Ok(None) };
        let all = "kubectl get runtimeclass";
        let Some(classes) = &self.classes else {
            return Err((
                "the cluster's RuntimeClasses are not known yet".to_owned(),
                all.to_owned(),
            ));
        };
        match classes.get(name).map(|class| class.handler.as_str()) {
            None => Err((format!("there is no RuntimeClass {name}"), all.to_owned())),
            Some("") => {
                let why = format!("the RuntimeClass {name} has no handler");
                Err((why, format!("{all} {name} -o yaml")))
            }
            handler => Ok(handler),
        }
    }

    /// Whether a pod of that class may go to a node that has, or is to have, cards of mpsgate's.
    pub(crate) fn reaches(&self, class: Option<&str>, place: &Where) -> bool {
        let class = class.and_then(|name| self.classes.as_ref()?.get(name));
        let terms = place.compared();
        self.nodes.iter().any(|(name, node)| place.leaves(terms, class, name, node))
    }

    /// How a pod of that class comes to the nodes that count for it.
    pub(crate) fn way(&self, class: Option<&str>, place: &Where, placer: Placer) -> Way {
        let known = class.and_then(|name| self.classes.as_ref()?.get(name));
        let terms = place.compared();
        let counts = |(name, node): &(&String, &GpuNode)| place.counts(terms, known, name, node);
        let mut reached = self.nodes.iter().filter(counts).peekable();
        if reached.peek().is_none() {
            return Way::Fine;
        }
        let handler = match self.handler(class) {
            Ok(handler) => handler,
            Err((why, hint)) => return unknown(class, &why, &hint),
        };
        let (mut round, mut unsure): (Vec<&str>, Option<(&str, String)>) = (Vec::new(), None);
        let (mut found, mut led, mut count) = (None, None, 0);
        for (name, node) in reached {
            count += 1;
            let handlers = match &node.handlers {
                Ok(handlers) => handlers,
                Err(why) => {
                    unsure.get_or_insert_with(|| (name, why.clone()));
                    continue;
                }
            };
            led = led.or_else(|| handlers.default.as_ref().filter(|one| handlers.leads(one)));
            let Some(handler) = handler.or(handlers.default.as_deref()) else { continue };
            if handlers.round.contains(handler) {
                found = Some(handler);
                round.push(name);
            } else if !handlers.leads(handler) {
                unsure
                    .get_or_insert_with(|| (name, format!("does not know the handler {handler}")));
            }
        }
        // A node without a label refuses nobody, and is a way for those that an extender places.
        let leads = |(name, node): (&String, &GpuNode)| {
            let Ok(said) = &node.handlers else { return false };
            let handler = handler.or(said.default.as_deref());
            handler.is_some_and(|handler| said.leads(handler))
                && place.leaves(terms, known, name, node)
        };
        let steered =
            placer == Placer::Extender && (round.len() < count || self.nodes.iter().any(leads));
        match (round.first(), found, unsure, class) {
            (Some(first), Some(handler), ..) if !steered => {
                let refusal = bypasses(class, handler, &round, led.is_some(), first);
                if class.is_some() { Way::Bypass(refusal) } else { Way::Default(refusal) }
            }
            (_, _, Some((node, why)), Some(_)) => {
                let why = format!("node {node} {why}");
                unknown(class, &why, &condition_of(node))
            }
            _ => Way::Fine,
        }
    }
}

/// Shows what a node says of its handlers, and what to do.
fn condition_of(node: &str) -> String {
    format!(
        "kubectl get node {node} -o jsonpath='{{.status.conditions[?(@.type==\"GPUMemorySharingBypass\")].message}}'"
    )
}

fn bypasses(
    class: Option<&str>,
    handler: &str,
    nodes: &[&str],
    leads: bool,
    first: &str,
) -> Refusal {
    let word = if nodes.len() == 1 { "node" } else { "nodes" };
    let on = format!("{word} {}", few(nodes, NAMED));
    let (found, remove) = match class {
        Some(class) => (
            format!(
                "its pod's RuntimeClass {class} has the handler {handler}, which bypasses mpsgate on {on}"
            ),
            if leads {
                format!(
                    "remove runtimeClassName: {class} (the default handler leads through mpsgate), or "
                )
            } else {
                String::new()
            },
        ),
        None => (
            format!(
                "its pod has no RuntimeClass, and the default handler {handler} bypasses mpsgate on {on}"
            ),
            "set runtimeClassName to one whose handler leads through mpsgate, or ".to_owned(),
        ),
    };
    let hint =
        format!("{remove}lead {handler} through mpsgate as this says: {}", condition_of(first));
    Refusal::new(Code::Handler, format!("{found}: no limit holds, and every card is open"), hint)
}

fn unknown(class: Option<&str>, why: &str, hint: &str) -> Way {
    let class = class.unwrap_or_default();
    let sentence =
        format!("whether its pod's RuntimeClass {class} leads through mpsgate is not known: {why}");
    Way::Unknown(Refusal::new(Code::Handler, sentence, hint))
}

#[cfg(test)]
mod tests;
