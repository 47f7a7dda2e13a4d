//! What follows from a card's answers, as a table in golden text: for each question each answer,
//! and for what was asked of another driver.

use std::fmt::Write as _;

use mpsgate_model::{
    Answer, Guarantee, QUESTIONS, Qualification, Question, Subject, Verdict, example_gpu,
};
use mpsgate_policy::{Conclusion, GuaranteeLevel, conclude};

const DAY_MS: u64 = 86_400_000;

fn subject(driver: &str) -> Subject {
    Subject {
        card: example_gpu(0),
        driver: driver.to_owned(),
        control: "71696 bytes".to_owned(),
        questions: QUESTIONS,
        simulated: false,
    }
}

fn answer(question: Question, verdict: Verdict) -> Answer {
    let (seen, mib) = match (question, verdict) {
        (_, Verdict::Unanswered) => ("no libcuda.so.1".to_owned(), None),
        (Question::Processes, Verdict::Yes) => ("310 MiB idle".to_owned(), Some(310)),
        (Question::Limit | Question::Bypass, Verdict::No) => {
            ("a client with 1024 MiB got 4096".to_owned(), Some(4096))
        }
        _ => ("so it was".to_owned(), Some(1000)),
    };
    Answer {
        question,
        expected: question.expected().to_owned(),
        seen,
        verdict,
        evidence: String::new(),
        meanwhile: String::new(),
        mib,
        granted_mib: Some(1024),
        took_ms: 1000,
        // Each on another day, the first questions last.
        at_ms: (20_780 - question as u64) * DAY_MS,
    }
}

fn all(verdict: Verdict) -> Vec<Answer> {
    Question::ALL.map(|question| answer(question, verdict)).into()
}

/// All yes, but for one.
fn but(one: Question, verdict: Verdict) -> Vec<Answer> {
    let mut answers = all(Verdict::Yes);
    answers.retain(|answer| answer.question != one);
    answers.push(answer(one, verdict));
    answers
}

fn text(conclusion: &Conclusion) -> String {
    let mut text = String::new();
    for moment in [Guarantee::None, Guarantee::Mps, Guarantee::MpsWatchdog, Guarantee::Cgroup] {
        let GuaranteeLevel { guarantee, proof, is_proven } = conclusion.level(moment);
        let level = guarantee.as_str();
        let mark = if is_proven { " [proven]" } else { "" };
        let _ = writeln!(text, "  {:12} → {level:12} {proof}{mark}", moment.as_str());
    }
    let shm = conclusion.shared_memory.map_or("as seen", |seen| seen.as_str());
    let _ = writeln!(text, "  /dev/shm {shm}, tolerance {}", conclusion.tolerance);
    for (what, sentence) in [
        ("refused", &conclusion.refusal),
        ("one uid", &conclusion.one_uid),
        ("no client is ended first", &conclusion.no_terminate),
        ("due", &conclusion.due),
    ] {
        if let Some(sentence) = sentence {
            let _ = writeln!(text, "  {what}: {sentence}");
        }
    }
    for failure in &conclusion.failures {
        let _ = writeln!(text, "  fails: {failure}");
    }
    text
}

#[test]
fn every_answer_has_its_consequence() {
    let now = subject("550.163.01");
    let mut cases = vec![
        ("nobody asked".to_owned(), None),
        ("all yes".to_owned(), Some(all(Verdict::Yes))),
        ("all no".to_owned(), Some(all(Verdict::No))),
        ("nothing could be asked".to_owned(), Some(all(Verdict::Unanswered))),
        (
            "broken off after the first".to_owned(),
            Some(vec![answer(Question::Attach, Verdict::Yes)]),
        ),
    ];
    for question in Question::ALL.into_iter().chain(Question::FULL) {
        // `all` has those that are always asked.
        let yes = Question::FULL.contains(&question).then_some(Verdict::Yes);
        for verdict in yes.into_iter().chain([Verdict::No, Verdict::Unanswered]) {
            let title = format!("{}: {}", question.as_str(), verdict.as_str());
            cases.push((title, Some(but(question, verdict))));
        }
    }
    let disturbed = |question| {
        let meanwhile = "it lost its MPS control daemon".to_owned();
        Answer { meanwhile, ..answer(question, Verdict::Unanswered) }
    };
    let mut answers = but(Question::Attach, Verdict::Yes);
    answers.retain(|answer| ![Question::Attach, Question::Limit].contains(&answer.question));
    answers.extend([Question::Attach, Question::Limit].map(disturbed));
    cases.push(("two while something else happened".to_owned(), Some(answers)));
    let mut golden = String::new();
    for (title, answers) in cases {
        let found = answers.map(|answers| Qualification::new(now.clone(), answers));
        let _ = writeln!(golden, "{title}\n{}", text(&conclude(found.as_ref(), &now)));
    }
    for (title, verdict) in [("yes", Verdict::Yes), ("no", Verdict::No)] {
        let found = Qualification::new(now.clone(), all(verdict));
        let after = conclude(Some(&found), &subject("580.65.06"));
        let _ = writeln!(golden, "all {title}, of the driver before\n{}", text(&after));
    }
    let control = "another".to_owned();
    for (title, was) in [
        ("another control program", Subject { control, ..now.clone() }),
        ("newer questions", Subject { questions: QUESTIONS + 1, ..now.clone() }),
        ("another card", Subject { card: example_gpu(1), ..now.clone() }),
        ("simulated", Subject { simulated: true, ..now.clone() }),
    ] {
        let found = Qualification::new(was, all(Verdict::Yes));
        let _ = writeln!(golden, "all yes, {title} then\n{}", text(&conclude(Some(&found), &now)));
    }
    mpsgate_testing::golden!("qualification.txt", &golden);
}
