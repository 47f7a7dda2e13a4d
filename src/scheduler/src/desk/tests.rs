#![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use http_body_util::Empty;

use super::*;

const MIB: usize = 1024 * KIB;

fn post(body: Vec<u8>) -> Request<Body> {
    Request::new(Body::from(body))
}

fn soon() -> Instant {
    Instant::now() + BODY_LIMIT
}

/// A body that says no length, and never ends.
struct Endless {
    piece: Bytes,
    pieces: usize,
}

impl axum::body::HttpBody for Endless {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.pieces == 0 {
            return Poll::Pending;
        }
        self.pieces -= 1;
        Poll::Ready(Some(Ok(Frame::data(self.piece.clone()))))
    }
}

fn endless(piece: usize, pieces: usize) -> Request<Body> {
    Request::new(Body::new(Endless { piece: vec![b' '; piece].into(), pieces }))
}

#[tokio::test(start_paused = true)]
async fn a_body_is_read_up_to_its_limit_and_as_long_as_it_may_take() {
    let desk = Desk::new(8 * MIB, "do less");
    let whole = desk.ask(post(vec![b'x'; 8 * MIB]), None, |body, _| body.len()).await;
    assert_eq!(whole, Ok(8 * MIB));
    assert_eq!(
        desk.ask(Request::new(Body::new(Empty::new())), None, |body, _| body.len()).await,
        Ok(0)
    );
    for too_much in [post(vec![b'x'; 8 * MIB + 1]), endless(MIB, 9)] {
        let error = desk.ask(too_much, None, |body, _| body.len()).await.unwrap_err();
        assert!(error.contains("more than 8 MiB") && error.contains("do less"), "{error}");
    }
    let error = desk.ask(endless(MIB, 2), None, |body, _| body.len()).await.unwrap_err();
    assert!(error.contains("did not arrive"), "{error}");
    let error = desk.body(post(vec![b'x'; 20 * KIB]), 16 * KIB, soon()).await.unwrap_err();
    assert!(error.contains("more than 16 KiB"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn bodies_that_say_their_length_do_not_hold_each_other_up_halfway() {
    let desk = Arc::new(Desk::new(28 * MIB, "do less"));
    let ask = |desk: Arc<Desk>| async move {
        desk.ask(post(vec![b'x'; 28 * MIB]), None, |body, _| body.len()).await
    };
    let (one, other) = tokio::join!(ask(Arc::clone(&desk)), ask(desk));
    assert_eq!((one, other), (Ok(28 * MIB), Ok(28 * MIB)));
}

/// Says that it has so many bytes, and sends none.
struct Announced(u64);

impl axum::body::HttpBody for Announced {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Pending
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0)
    }
}

#[tokio::test(start_paused = true)]
async fn a_length_that_is_only_said_holds_nobody_up_and_nothing_is_waited_for_in_vain() {
    let desk = Desk::new(28 * MIB, "do less");
    let silent = || Request::new(Body::new(Announced(28 * MIB as u64)));
    let latest = Instant::now() + Duration::from_millis(2_500);
    let (first, second, real) = tokio::join!(
        desk.ask(silent(), Some(latest.into_std()), |body, _| body.len()),
        desk.ask(silent(), None, |body, _| body.len()),
        async {
            let length = desk.ask(post(vec![b'x'; 28 * MIB]), None, |body, _| body.len()).await;
            (length, Instant::now() < latest)
        },
    );
    assert!(first.unwrap_err().contains("did not arrive"));
    assert!(second.unwrap_err().contains("did not arrive"));
    assert_eq!(real, (Ok(28 * MIB), true));
}

#[tokio::test(start_paused = true)]
async fn large_bodies_wait_for_each_other_and_usual_ones_for_none_of_them() {
    let desk = Desk::new(8 * MIB, "do less");
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(desk.body(post(vec![b'x'; 8 * MIB]), 8 * MIB, soon()).await.unwrap());
    }
    desk.body(post(vec![b'x'; MIB]), 8 * MIB, soon()).await.unwrap();
    let error = desk.body(post(vec![b'x'; 8 * MIB]), 8 * MIB, soon()).await.unwrap_err();
    assert!(error.contains("did not arrive"), "{error}");
    assert_eq!(desk.ask(post(vec![b'x'; FREE]), None, |body, _| body.len()).await, Ok(FREE));
    held.pop();
    desk.body(post(vec![b'x'; 8 * MIB]), 8 * MIB, soon()).await.unwrap();
}

#[tokio::test]
async fn no_more_than_four_questions_are_searched_at_a_time_and_the_next_is_told_so() {
    let desk = Arc::new(Desk::new(8 * MIB, "do less"));
    let (started, starts) = mpsc::channel();
    let mut ends = Vec::new();
    let mut searches = Vec::new();
    for _ in 0..4 {
        let (end, ended) = mpsc::channel::<()>();
        let (desk, started) = (Arc::clone(&desk), started.clone());
        ends.push(end);
        searches.push(tokio::spawn(async move {
            desk.ask(post(Vec::new()), None, move |_, _| {
                started.send(()).unwrap();
                let _ = ended.recv();
            })
            .await
        }));
    }
    tokio::task::spawn_blocking(move || (0..4).for_each(|_| starts.recv().unwrap())).await.unwrap();
    let error = desk.ask(post(Vec::new()), None, |_, _| ()).await.unwrap_err();
    assert!(error.contains("too many other questions"), "{error}");
    drop(ends);
    for search in searches {
        assert_eq!(search.await.unwrap(), Ok(()));
    }
    assert_eq!(desk.ask(post(Vec::new()), None, |_, _| ()).await, Ok(()));
}

#[tokio::test]
async fn two_large_questions_are_answered_at_a_time_and_usual_ones_beside_them() {
    let desk = Arc::new(Desk::new(8 * MIB, "do less"));
    let (started, starts) = mpsc::channel();
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut ends = Vec::new();
    let mut searches = Vec::new();
    for _ in 0..12 {
        let (end, ended) = mpsc::channel::<()>();
        let (desk, started) = (Arc::clone(&desk), started.clone());
        let (running, most) = (Arc::clone(&running), Arc::clone(&most));
        ends.push(end);
        searches.push(tokio::spawn(async move {
            desk.ask(post(vec![b'x'; FREE + 1]), None, move |_, _| {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                // Nobody listens after the first two.
                let _ = started.send(());
                let _ = ended.recv();
                running.fetch_sub(1, Ordering::SeqCst);
            })
            .await
        }));
    }
    tokio::task::spawn_blocking(move || (0..2).for_each(|_| starts.recv().unwrap())).await.unwrap();
    for _ in 0..8 {
        let usual = desk.ask(post(vec![b'x'; FREE]), None, |body, _| body.len()).await;
        assert_eq!(usual, Ok(FREE));
    }
    drop(ends);
    for search in searches {
        // One that waited too long, on a slow machine, is told so.
        let _ = search.await.unwrap();
    }
    assert_eq!(most.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_wait_for_a_turn_ends_when_nobody_waits_for_the_answer_any_longer() {
    let desk = Arc::new(Desk::new(8 * MIB, "do less"));
    let (started, starts) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let asked = Arc::clone(&desk);
    // It has the turns of two.
    let search = tokio::spawn(async move {
        asked
            .ask(post(vec![b'x'; HALF + 1]), None, move |_, _| {
                started.send(()).unwrap();
                let _ = ended.recv();
            })
            .await
    });
    tokio::task::spawn_blocking(move || starts.recv().unwrap()).await.unwrap();
    let began = std::time::Instant::now();
    let latest = Some(began + Duration::from_millis(50));
    let error = desk.ask(post(vec![b'x'; MIB]), latest, |_, _| ()).await.unwrap_err();
    assert!(error.contains("too many other questions"), "{error}");
    assert!(began.elapsed() < ANSWER_LIMIT, "{:?}", began.elapsed());
    drop(end);
    assert_eq!(search.await.unwrap(), Ok(()));
}

#[tokio::test]
async fn answers_that_nobody_reads_have_a_bound_and_small_ones_always_go() {
    let desk = Desk::new(8 * MIB, "do less");
    let waiting: Vec<_> = (0..4).map(|_| desk.answer(vec![b'x'; 16 * MIB]).unwrap()).collect();
    assert!(desk.answer(vec![b'x'; MIB]).is_none());
    let small = desk.answer(vec![b'x'; 100 * KIB]).unwrap();
    assert_eq!(small.size_hint().exact(), Some(100 * 1024));
    assert_eq!(small.collect().await.unwrap().to_bytes(), vec![b'x'; 100 * KIB]);
    drop(waiting);
    assert!(desk.answer(vec![b'x'; MIB]).is_some());
}
