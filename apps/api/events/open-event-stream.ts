import type { Request, Response } from 'express';
import type { Checkpoint } from '#libs/event-log/read-events.ts';
import type { Caller } from '#libs/http/caller.ts';
import { abortWhenClientLeaves } from '#libs/http/client-signal.ts';
import { drained } from '#libs/http/answers/send-pieces.ts';
import type { EventWatch } from '#libs/activity/event-streams.ts';

export type EventStreamDeps = {
  /** Throws when the key or session of the stream has been revoked or has expired. */
  authenticate: (request: Request) => Caller | Promise<Caller>;
  stallTimeoutMs: number;
};

/** The content type of one JSON object per line. */
export const linesType = 'application/x-ndjson';

/** Whether the client asks for one JSON object per line instead of the usual type. */
export const wantsLines = (request: Request, usual: string): boolean =>
  request.accepts([usual, linesType]) === linesType;

/** A comment is sent after this long without an event, because proxies cut silent connections. */
const heartbeatMs = 15_000;

export type OpenEventStream = {
  /** Aborts when the client leaves. */
  signal: AbortSignal;
  /** false: the client has left, or did not read for the stall timeout. */
  send(frames: string | Buffer): Promise<boolean>;
  /**
   * The caller of the stream, with its current rights; null when it can no longer follow the stream. Call this before
   * each page.
   */
  caller(): Promise<Caller | null>;
};

/** `mayFollow`: whether a caller with these rights can follow the stream. */
type StreamRequest = {
  request: Request;
  response: Response;
  caller: Caller;
  mayFollow: (caller: Caller) => boolean;
  /** The answer has one JSON object per line instead of server-sent events. */
  asLines?: boolean;
};

/** Begins an answer of server-sent events (WHATWG HTML 9.2) or of lines, and informs the client that it is open. */
export async function openEventStream(
  { authenticate, stallTimeoutMs }: EventStreamDeps,
  { request, response, caller: { workspaceId }, mayFollow, asLines = false }: StreamRequest,
): Promise<OpenEventStream> {
  response.setHeader('content-type', asLines ? linesType : 'text/event-stream; charset=utf-8');
  response.setHeader('cache-control', 'no-store');
  response.setHeader('x-accel-buffering', 'no');
  response.flushHeaders();
  const send: OpenEventStream['send'] = async (frames) => {
    if (response.destroyed) return false;
    return response.write(frames) || (await drained(response, stallTimeoutMs));
  };
  // The event `open` informs clients that they receive everything from now on. For lines, the head of the answer does.
  if (!asLines) await send('retry: 1000\nevent: open\ndata: {}\n\n');
  return {
    signal: abortWhenClientLeaves(response).signal,
    send,
    async caller() {
      try {
        const caller = await authenticate(request);
        return caller.workspaceId === workspaceId && mayFollow(caller) ? caller : null;
      } catch {
        return null;
      }
    },
  };
}

/** The frames that one kind of stream sends about the news of a workspace. */
type NewsFrames = {
  /**
   * Sends the events after a position. Resolves with the new position, or with null when the client has left or can no
   * longer follow the stream.
   */
  sendEvents(from: Checkpoint, stream: OpenEventStream): Promise<Checkpoint | null>;
  /** Returns the frame that reports new calls, of which this is the newest. */
  callFrame(newestCall: string): string;
  /**
   * Sent after `everyMs` without an event, for a client that treats silence as a lost connection. Absent: occasional
   * comments or empty lines are sent.
   */
  heartbeat?: { everyMs: number; frame: string };
};

/**
 * Answers with server-sent events about a workspace, from a position on, until the client leaves or reads nothing for
 * the stall timeout, its key or right ends, or the process stops. Rejects when the database is unavailable. The
 * connection is cut in that case, and the client connects again.
 */
export async function followWorkspace(
  deps: EventStreamDeps,
  { watch, start, ...followed }: StreamRequest & { watch: EventWatch; start: Checkpoint },
  frames: NewsFrames,
): Promise<void> {
  const { response } = followed;
  response.on('close', () => watch.stop());
  const silence = followed.asLines === true ? '\n' : ': still here\n\n';
  const { everyMs, frame } = frames.heartbeat ?? { everyMs: heartbeatMs, frame: silence };
  try {
    const stream = await openEventStream(deps, followed);
    let position: Checkpoint | null = start;
    let sentMs = performance.now();
    for (let isOpen = true; isOpen;) {
      const { hasEvents, newestCall, isOver } = await watch.next(sentMs + everyMs - performance.now());
      if (isOver || response.destroyed || (await stream.caller()) === null) break;
      if (hasEvents) position = await frames.sendEvents(position, stream);
      if (position === null) break;
      const isQuiet = performance.now() - sentMs >= everyMs;
      if (newestCall !== null) isOpen = await stream.send(frames.callFrame(newestCall));
      else if (isQuiet) isOpen = await stream.send(frame);
      if (hasEvents || newestCall !== null || isQuiet) sentMs = performance.now();
    }
  } finally {
    // This also covers a client that had left before the listener was added.
    watch.stop();
  }
  response.end();
}
