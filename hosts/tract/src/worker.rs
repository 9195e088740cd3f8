//! The thread that owns the compiled segments of a model, with their resident params.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};

use fourfold::ir::Tensor;
use fourfold::{Compiled, Session};

use crate::error::Error;

/// Runs the segments of one model, one call at a time. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Worker {
    calls: Mutex<Sender<Call>>,
}

/// One call of a segment.
struct Call {
    segment: usize,
    inputs: Vec<(String, Tensor)>,
    symbols: Vec<(String, u64)>,
    reply: SyncSender<Result<Vec<Tensor>, fourfold::Error>>,
}

impl Worker {
    /// Starts the thread, and a session for each program with its params.
    pub(crate) fn start(programs: Vec<(Compiled, HashMap<String, Tensor>)>) -> Result<Worker, Error> {
        let (calls, received) = channel();
        let (ready, started) = sync_channel(1);
        let run = move || serve(programs, &ready, &received);
        std::thread::Builder::new().name("fourfold-tract".to_owned()).spawn(run).map_err(Error::Thread)?;
        started.recv().map_err(|_| Error::Worker)??;
        Ok(Worker { calls: Mutex::new(calls) })
    }

    /// Runs a segment on inputs by name. `symbols` has the extents that tract knows.
    pub(crate) fn call(
        &self,
        segment: usize,
        inputs: Vec<(String, Tensor)>,
        symbols: Vec<(String, u64)>,
    ) -> Result<Vec<Tensor>, Error> {
        let (reply, answer) = sync_channel(1);
        let call = Call { segment, inputs, symbols, reply };
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone();
        calls.send(call).map_err(|_| Error::Worker)?;
        Ok(answer.recv().map_err(|_| Error::Worker)??)
    }
}

fn serve(
    programs: Vec<(Compiled, HashMap<String, Tensor>)>,
    ready: &SyncSender<Result<(), fourfold::Error>>,
    calls: &Receiver<Call>,
) {
    let (compiled, params): (Vec<Compiled>, Vec<_>) = programs.into_iter().unzip();
    let mut sessions: Vec<Option<Session<'_>>> = Vec::with_capacity(compiled.len());
    for (compiled, params) in compiled.iter().zip(params) {
        match compiled.session(params) {
            Ok(session) => sessions.push(Some(session)),
            Err(error) => {
                // The receiver waits for exactly one answer.
                let _ = ready.send(Err(error));
                return;
            }
        }
    }
    if ready.send(Ok(())).is_err() {
        return;
    }
    for Call { segment, inputs, symbols, reply } in calls {
        let Some(slot) = sessions.get_mut(segment) else { continue };
        let Some(session) = slot.take() else { continue };
        let session = slot.insert(session.with_symbols(symbols));
        let inputs = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor.into())).collect();
        let result = session.run(&inputs).map(|run| run.outputs.into_iter().flatten().collect());
        // A caller that no longer waits needs no answer.
        let _ = reply.send(result);
    }
}
