import type { Dispatcher } from 'undici';
import type { ReadPace } from './read-pace.ts';

export type CallOptions = Dispatcher.DispatchOptions & {
  origin: string;
  /** Whose share of the connections the call takes; calls without one are one workspace together. */
  workspaceId?: string | undefined;
  /** Asking twice makes nothing twice, although the method is not GET: a call of a model. Default false. */
  isRepeatable?: boolean | undefined;
};

type Needed = 'onRequestStart' | 'onResponseStart' | 'onResponseData' | 'onResponseEnd' | 'onResponseError';
/** A call whose socket is not open yet. */
export type ConnectingCall = {
  /** Gives up the call and the socket; the error comes by `onResponseError`. Once the socket is open it does nothing. */
  abort: (error: Error) => void;
};
/**
 * undici's handler, with a place for all that is told. `onConnecting`: the call waits for a new socket. `onResent`: the
 * request goes out once more, over another socket.
 */
export type CallHandler = Required<Pick<Dispatcher.DispatchHandler, Needed>> & {
  onConnecting?: (call: ConnectingCall) => void;
  onResent?: () => void;
};

/** What carries a call. */
type Carrier = {
  /** Calls that this socket answered. */
  answered: number;
  /** Of its socket, once it is open. */
  pace: ReadPace | null;
};

/** An idle socket that the other side closes is found out within a round trip; later, a call was being worked on. */
const resendMsMax = 1_000;
const lostCodes: ReadonlySet<unknown> = new Set(['UND_ERR_SOCKET', 'ECONNRESET', 'EPIPE']);

type Owner<Connection extends Carrier> = {
  /** The call is over, well or not. */
  ended: (call: Call<Connection>, isAnswered: boolean) => void;
  /** Ends the socket that is being opened for the call. */
  giveUp: (call: Call<Connection>, error: Error) => void;
  /** Sends the call over a new socket; false when that is not possible. */
  resend: (call: Call<Connection>) => boolean;
};

/**
 * One call on its socket: passes on what undici tells, and sees what became of the socket. A class, because one is made for
 * every call and its methods are not.
 */
export class Call<Connection extends Carrier> implements Dispatcher.DispatchHandler, ConnectingCall {
  readonly #owner: Owner<Connection>;
  readonly options: CallOptions;
  readonly handler: CallHandler;
  connection: Connection;
  /** When the request was written to a socket that had answered others before; else 0. */
  #sentOnUsedAt = 0;
  #isResent = false;

  constructor(owner: Owner<Connection>, options: CallOptions, handler: CallHandler, connection: Connection) {
    this.#owner = owner;
    this.options = options;
    this.handler = handler;
    this.connection = connection;
  }

  abort(error: Error): void {
    this.#owner.giveUp(this, error);
  }

  onRequestStart(controller: Dispatcher.DispatchController, context: unknown): void {
    this.#sentOnUsedAt = this.connection.answered === 0 ? 0 : performance.now();
    this.handler.onRequestStart(controller, context);
  }

  /** The first byte of an answer is there. */
  onResponseStarted(): void {
    this.#sentOnUsedAt = 0;
  }

  onResponseStart(controller: Dispatcher.DispatchController, status: number, headers: Headers): void {
    if (status >= 200) this.connection.pace?.headRead();
    this.handler.onResponseStart(controller, status, headers);
    // Whoever has no room for the answer pauses it here: the pause is no time that was spent on reading.
    this.connection.pace?.handedOn(0, controller.paused);
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer): void {
    this.handler.onResponseData(controller, chunk);
    this.connection.pace?.handedOn(chunk.length, controller.paused);
  }

  onResponseEnd(controller: Dispatcher.DispatchController, trailers: Headers): void {
    const { pace } = this.connection;
    this.#owner.ended(this, true);
    pace?.ending();
    this.handler.onResponseEnd(controller, trailers);
    pace?.ended();
  }

  onResponseError(controller: Dispatcher.DispatchController, error: Error): void {
    // What the last piece took counts, too: headers without end fail in the middle of one, and nothing is read after it.
    this.connection.pace?.ending();
    this.#owner.ended(this, false);
    if (this.#cameTooLate(error)) {
      this.#isResent = true;
      if (this.#owner.resend(this)) return;
    }
    this.handler.onResponseError(controller, error);
  }

  /**
   * Whether the other side closed an idle socket while the request was on its way: the socket had been used before, it was
   * lost at once, and not a byte was answered. RFC 9112 9.3.1 lets a client repeat what it knows was not processed, and
   * asks for more than an idempotent method to know that; a server that closes an idle socket has not read what comes
   * after. What is left is a server that read the request and died within a second, as likely on a first request. So what
   * makes something at the provider (a file, a job, a thread) is never repeated here: whoever asks for it looks first
   * whether it is there. Sent once more only, and never a body that is a stream.
   */
  #cameTooLate(error: Error): boolean {
    const { body, method, isRepeatable } = this.options;
    return (
      (isRepeatable === true || method === 'GET') &&
      this.#sentOnUsedAt !== 0 &&
      !this.#isResent &&
      'code' in error &&
      lostCodes.has(error.code) &&
      (body === null || body === undefined || typeof body === 'string' || body instanceof Uint8Array) &&
      performance.now() - this.#sentOnUsedAt < resendMsMax
    );
  }
}

type Headers = Parameters<CallHandler['onResponseStart']>[2];
