import type { Dispatcher } from 'undici';
import type { ReadPace } from '../answers/read-pace.ts';
import { canResend } from '../../retry.ts';

export type CallOptions = Dispatcher.DispatchOptions & {
  origin: string;
  /** The workspace whose share of the connections the call uses. All calls without a workspace share one. */
  workspaceId?: string | undefined;
  /**
   * Whether a repeated request never creates a duplicate, although its method is not GET: a call of a model. Default
   * false.
   */
  isRepeatable?: boolean | undefined;
};

type Needed = 'onRequestStart' | 'onResponseStart' | 'onResponseData' | 'onResponseEnd' | 'onResponseError';
/** A call whose socket is not open yet. */
export type ConnectingCall = {
  /** Ends the call and the socket; `onResponseError` gets the error. Does nothing once the socket is open. */
  abort: (error: Error) => void;
};
/**
 * undici's handler, with a member for everything that is reported. `onConnecting`: the call waits for a new socket.
 * `onResent`: the request is sent once more, on another socket.
 */
export type CallHandler = Required<Pick<Dispatcher.DispatchHandler, Needed>> & {
  onConnecting?: (call: ConnectingCall) => void;
  onResent?: () => void;
};

/** The socket of a call. */
type Carrier = {
  /** How many calls this socket has answered. */
  answered: number;
  /** The pace of its socket, once that is open. */
  pace: ReadPace | null;
};

type Owner<Connection extends Carrier> = {
  /** The call is over, with or without an error. */
  ended: (call: Call<Connection>, isAnswered: boolean) => void;
  /** Closes the socket that is being opened for the call. */
  giveUp: (call: Call<Connection>, error: Error) => void;
  /** Sends the call on a new socket. Returns false when that is not possible. */
  resend: (call: Call<Connection>) => boolean;
};

/**
 * One call on its socket. Passes on the events of undici, and observes what happens to the socket. It is a class
 * because one is made for every call, and its methods are shared.
 */
export class Call<Connection extends Carrier> implements Dispatcher.DispatchHandler, ConnectingCall {
  readonly #owner: Owner<Connection>;
  readonly options: CallOptions;
  readonly handler: CallHandler;
  connection: Connection;
  /** When the request was written to a socket that had answered others before; otherwise 0. */
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

  /** The first byte of an answer has arrived. */
  onResponseStarted(): void {
    this.#sentOnUsedAt = 0;
  }

  onResponseStart(controller: Dispatcher.DispatchController, status: number, headers: Headers): void {
    // They have been parsed. While a stream lasts, each would keep a Buffer alive, 4 KB in all.
    controller.rawHeaders = null;
    if (status >= 200) this.connection.pace?.headRead();
    else this.connection.pace?.interimHeadRead();
    this.handler.onResponseStart(controller, status, headers);
    // A receiver without memory pauses the answer here. The pause does not count as time spent on reading.
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
    // The time of the last piece counts too: endless headers fail in the middle of a piece, and no read follows it.
    this.connection.pace?.ending();
    this.#owner.ended(this, false);
    const onUsedSocketForMs = this.#sentOnUsedAt === 0 ? null : performance.now() - this.#sentOnUsedAt;
    if (!this.#isResent && canResend(this.options, { error, onUsedSocketForMs })) {
      this.#isResent = true;
      if (this.#owner.resend(this)) return;
    }
    this.handler.onResponseError(controller, error);
  }
}

type Headers = Parameters<CallHandler['onResponseStart']>[2];
