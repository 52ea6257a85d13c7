import type { Hash } from 'node:crypto';
import type { Request, Response } from 'express';
import { findJsonBody } from '#libs/http/bodies/json-body.ts';
import { getCaller } from '#libs/http/request-context.ts';
import { newSalt, startDigest, type BodyDigests } from '#libs/request-log/record/body-digests.ts';

const digestsOfRequests = new WeakMap<Request, CallDigests>();

/** The digests of a live call, the same for each request. null: its workspace does not ask for them. */
export function findDigests(request: Request): CallDigests | null {
  if (getCaller(request).defaults.hashesBodies !== true) return null;
  let digests = digestsOfRequests.get(request);
  if (digests === undefined) digestsOfRequests.set(request, (digests = new CallDigests()));
  return digests;
}

/** Hashes the bodies of a live call. Bodies that pass through are hashed piece by piece, and never held for it. */
class CallDigests {
  readonly #salt = newSalt();
  #request: Hash | null = null;
  #answer: Hash | null = null;

  /** Adds the body of a request that is still arriving. `read`: its first pieces; `isWhole`: all of them. */
  watchRequest(request: Request, read: readonly Buffer[], isWhole: boolean): void {
    const hash = startDigest(this.#salt);
    const finish = (): void => {
      this.#request = hash;
    };
    for (const piece of read) hash.update(piece);
    if (isWhole) return finish();
    request.on('data', (piece: Buffer) => hash.update(piece)).once('end', finish);
  }

  /** Adds everything that is written to the response from now on. */
  watchAnswer(response: Response): void {
    const hash = startDigest(this.#salt);
    this.#answer = hash;
    const watched = (name: 'write' | 'end') => {
      const send = response[name].bind(response) as (...parameters: unknown[]) => unknown;
      return (...parameters: unknown[]): unknown => {
        const [piece, encoding] = parameters;
        if (piece instanceof Uint8Array) hash.update(piece);
        else if (typeof piece === 'string') hash.update(Buffer.from(piece, toEncoding(encoding)));
        return send(...parameters);
      };
    };
    Object.assign(response, { write: watched('write'), end: watched('end') });
  }

  /**
   * Returns the digests when the call is over. `answer`: the whole answer, unless it was watched; null if none was sent.
   * A request that was not read to its end has no digest.
   */
  finish(request: Request, answer: Buffer | null): BodyDigests {
    const whole = (bytes: Uint8Array | undefined | null): Hash | null =>
      bytes ? startDigest(this.#salt).update(bytes) : null;
    const requestHash = this.#request ?? whole(findJsonBody(request)?.bytes);
    const answerHash = this.#answer ?? whole(answer);
    return {
      sha256_salt: this.#salt.toString('hex'),
      request_sha256: requestHash?.digest('hex') ?? null,
      answer_sha256: answerHash?.digest('hex') ?? null,
    };
  }
}

const toEncoding = (encoding: unknown): BufferEncoding =>
  typeof encoding === 'string' ? (encoding as BufferEncoding) : 'utf8';
