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

/** A comment is sent after this long without an event, because proxies cut silent connections. */
const heartbeatMs = 15_000;

export type OpenEventStream = {
  /** Aborts when the client leaves. */
  signal: AbortSignal;
  /** False: the client has gone, or did not read for the stall timeout. */
  send(frames: string | Buffer): Promise<boolean>;
  /** Who follows the stream, with the rights of this moment; null when they may not follow it any more. Ask before each page. */
  caller(): Promise<Caller | null>;
};

/** `mayFollow`: whether somebody with these rights may follow the stream. */
type StreamRequest = { request: Request; response: Response; caller: Caller; mayFollow: (caller: Caller) => boolean };

/** Begins an answer of server-sent events (WHATWG HTML 9.2), which tells the client that it is open. */
export async function openEventStream(
  { authenticate, stallTimeoutMs }: EventStreamDeps,
  { request, response, caller: { workspaceId }, mayFollow }: StreamRequest,
): Promise<OpenEventStream> {
  response.setHeader('content-type', 'text/event-stream; charset=utf-8');
  response.setHeader('cache-control', 'no-store');
  response.setHeader('x-accel-buffering', 'no');
  response.flushHeaders();
  const send: OpenEventStream['send'] = async (frames) => {
    if (response.destroyed) return false;
    return response.write(frames) || (await drained(response, stallTimeoutMs));
  };
  // Clients know by `open` that everything from now on arrives.
  await send('retry: 1000\nevent: open\ndata: {}\n\n');
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

/** What one kind of stream sends about the news of a workspace. */
type NewsFrames = {
  /**
   * Sends what follows a position. Resolves with the new position, or with null when the client has gone or may not follow the
   * stream any more.
   */
  sendEvents(from: Checkpoint, stream: OpenEventStream): Promise<Checkpoint | null>;
  /** The frame that says that there are new calls, of which this is the newest. */
  callFrame(newestCall: string): string;
  /** Sent after `everyMs` without an event, to a client that takes silence for a lost connection. Absent: a comment at times. */
  heartbeat?: { everyMs: number; frame: string };
};

/**
 * Answers with server-sent events about a workspace, from a position on, until the client goes or reads nothing for the stall
 * timeout, its key or right ends, or the process stops. Rejects when the database is unavailable: the connection is cut then, and
 * the client connects again.
 */
export async function followWorkspace(
  deps: EventStreamDeps,
  { watch, start, ...followed }: StreamRequest & { watch: EventWatch; start: Checkpoint },
  frames: NewsFrames,
): Promise<void> {
  const { response } = followed;
  response.on('close', () => watch.stop());
  const { everyMs, frame } = frames.heartbeat ?? { everyMs: heartbeatMs, frame: ': still here\n\n' };
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
    // Also where the client had gone before anybody listened for that.
    watch.stop();
  }
  response.end();
}
