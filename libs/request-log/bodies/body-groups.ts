import { v7 as uuidv7 } from 'uuid';
import type { Recording } from '#libs/http/caller.ts';

/** The bodies of one call; null for a body that does not exist or was not read. */
export type CallBodies = { request: Uint8Array | null; response: Uint8Array | null };

/** Bodies that go into one blob. */
export type Group = {
  id: string;
  workspaceId: string;
  recording: Recording;
  bodies: CallBodies[];
  bytes: number;
  sinceMs: number;
};

/** A blob is written when it has this many bytes or bodies. */
const groupBytes = 4 * 1_048_576;
const groupBodies = 500;
/** Even an empty body takes some memory. */
const placeBytes = 256;

/** Bodies that wait to be written, grouped by the blob that they go into. */
export class BodyGroups {
  /** The memory of all bodies that were not released. */
  waitingBytes = 0;
  readonly #bytesMax: number;
  readonly #onReady: () => void;
  /** By workspace and requested recording. */
  readonly #open = new Map<string, Map<Recording, Group>>();
  readonly #ready: Group[] = [];
  readonly #bytesOfWorkspace = new Map<string, number>();

  /** One workspace can use a quarter of `bytesMax`. `onReady` is called when `next` has a group. */
  constructor(bytesMax: number, onReady: () => void) {
    this.#bytesMax = bytesMax;
    this.#onReady = onReady;
  }

  /** Returns the reference that the call's row stores (`bodies_blob`), or null when the memory limit is reached. */
  add(workspaceId: string, recording: Recording, bodies: CallBodies): string | null {
    const bytes = placeBytes + (bodies.request?.length ?? 0) + (bodies.response?.length ?? 0);
    const ofWorkspaceBytes = this.#bytesOfWorkspace.get(workspaceId) ?? 0;
    if (this.waitingBytes + bytes > this.#bytesMax || ofWorkspaceBytes + bytes > this.#bytesMax / 4) return null;
    const group = this.#openGroup(workspaceId, recording);
    const reference = `${group.id}.${group.bodies.length}`;
    group.bodies.push(bodies);
    group.bytes += bytes;
    this.#count(workspaceId, bytes);
    if (group.bytes >= groupBytes || group.bodies.length >= groupBodies) this.#close(group);
    return reference;
  }

  closeOlderThan(ms: number): void {
    const before = performance.now() - ms;
    const groups = [...this.#open.values()].flatMap((ofWorkspace) => [...ofWorkspace.values()]);
    for (const group of groups) if (group.sinceMs <= before) this.#close(group);
  }

  /** Removes and returns the oldest group that is ready. Its bodies are counted until `release`. */
  next(): Group | undefined {
    return this.#ready.shift();
  }

  release({ workspaceId, bytes }: Group): void {
    this.#count(workspaceId, -bytes);
  }

  #openGroup(workspaceId: string, recording: Recording): Group {
    let ofWorkspace = this.#open.get(workspaceId);
    if (ofWorkspace === undefined) this.#open.set(workspaceId, (ofWorkspace = new Map()));
    let group = ofWorkspace.get(recording);
    if (group === undefined) {
      group = { id: uuidv7(), workspaceId, recording, bodies: [], bytes: 0, sinceMs: performance.now() };
      ofWorkspace.set(recording, group);
    }
    return group;
  }

  #close(group: Group): void {
    const ofWorkspace = this.#open.get(group.workspaceId);
    ofWorkspace?.delete(group.recording);
    if (ofWorkspace?.size === 0) this.#open.delete(group.workspaceId);
    this.#ready.push(group);
    this.#onReady();
  }

  #count(workspaceId: string, bytes: number): void {
    this.waitingBytes += bytes;
    const sum = (this.#bytesOfWorkspace.get(workspaceId) ?? 0) + bytes;
    if (sum <= 0) this.#bytesOfWorkspace.delete(workspaceId);
    else this.#bytesOfWorkspace.set(workspaceId, sum);
  }
}
