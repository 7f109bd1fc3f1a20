// Stands in for the operator: each request for events gets a stream, which a test writes to. It is used where the
// operator itself does not matter, and where it would take a day.

// The streams that the page has open.
globalThis.streams = new Set();
globalThis.opened = 0;
// What a request is refused with, instead of a stream.
globalThis.refusal = "";

globalThis.fetch = async (_, { signal }) => {
  if (refusal !== "") return new Response(refusal, { status: 401 });
  let to;
  const body = new ReadableStream({ start(controller) { to = controller; } });
  streams.add(to);
  signal.addEventListener("abort", () => {
    streams.delete(to);
    to.error(signal.reason);
  });
  opened += 1;
  return new Response(body.pipeThrough(new TextEncoderStream()));
};

globalThis.send = (kind, data) => {
  for (const to of streams) to.enqueue(`event: ${kind}\ndata: ${JSON.stringify(data)}\n\n`);
};

// Ends the connection, as the operator does every ten minutes.
globalThis.end = () => {
  for (const to of streams) to.close();
  streams.clear();
};

const FINE = { status: "True", reason: "Reconciled", message: "slots are granted and released" };

const seconds = () => Math.floor(Date.now() / 1000);

// A semaphore as the operator sends it, with this many holders and waiting Jobs.
globalThis.semaphore = (name, { held = 0, waiting = 0, round = 0, trend = [[seconds() - 600, 0, 4], [seconds() - 60, held, 4]], ...other } = {}) => ({
  is: {
    namespace: "batch", name, prefix: `semaphores/batch/${name}`, mode: "Semaphore", keyed: false, ready: FINE, remarks: [],
    limit: 4, held, heldHere: held, waiting,
    holders: Array.from({ length: Math.min(held, 20) }, (_, number) => ({
      kind: "job", name: `batch/holder-${round + number}`, place: "prod-eu", session: `s-${round + number}`,
      since: seconds() - 90, neverExpires: false,
    })),
    queue: Array.from({ length: Math.min(waiting, 20) }, (_, number) => ({
      kind: "Job", name: `waiting-${round + number}`, since: seconds() - 30, why: number === 0 ? "all slots are held" : `behind waiting-${round + number - 1}`,
    })),
    ...other,
  },
  trend,
});

const not = (reason, message) => ({ ready: { status: "False", reason, message } });

// One of each kind.
globalThis.everything = () => [
  semaphore("a-idle"),
  semaphore("busy", { held: 4, waiting: 3 }),
  semaphore("conflict", { ...not("LimitConflict", "Consul's limit is 3 and spec.limit is 4"), problem: "LimitConflict", waiting: 1 }),
  semaphore("keyed", { keyed: true, keysInUse: 2, held: 3, trend: [[seconds() - 60, 3, null]] }),
  semaphore("large", { limit: 500, held: 120 }),
  semaphore("new", { ready: undefined }),
  semaphore("over", { held: 6 }),
  semaphore("paused", not("Paused", "spec.paused is true: no slot is granted")),
  semaphore("without-a-slot-and-with-a-name-that-is-as-long-as-kubernetes-allows-for-names-of-objects", {
    held: 4, problem: "RunningWithoutSlot",
    remarks: [{ status: "False", reason: "RunningWithoutSlot", message: "running without a slot, because spec.onSlotLost is Continue: migrate-1" }],
  }),
];

globalThis.begin = () => send("begin", { version: "0.1.0", commit: "test", user: "jane", now: seconds() });
globalThis.operator = (obstacles = "") => send("operator", { obstacles, remarks: "leader: it leads\n", trouble: null });
globalThis.change = (semaphores, gone = []) => send("change", { semaphores, gone });

// What the operator sends to a page that has just opened.
globalThis.tellAll = (semaphores) => {
  begin();
  operator();
  change(semaphores);
  send("complete", null);
};
