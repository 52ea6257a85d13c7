import { createLocalJWKSet, errors, jwtVerify, type JWTVerifyGetKey } from 'jose';
import { LRUCache } from 'lru-cache';
import type { GuardrailCheck } from '#libs/contracts/configs/guardrail-checks.ts';
import type { Egress } from '#libs/calls/upstream/egress/egress.ts';
import { fetchKeySet } from '#libs/calls/upstream/egress/fetch-key-set.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { GuardrailSubject } from '../texts/subject.ts';
import type { Finding } from './text-checks.ts';

type JwtGuardrailCheck = Extract<GuardrailCheck, { name: 'jwt' }>;

/** Checks whether the token of a call is valid. Rejects only if the caller left (the reason of its signal). */
export type JwtCheck = (check: JwtGuardrailCheck, subject: GuardrailSubject) => Promise<Finding>;

const tokenLengthMax = 16_384;
const setsMax = 500;
/**
 * A token with an unknown key can mean that the keys have changed. They are fetched again in that case, but at most
 * this often.
 */
const refetchMs = 30_000;

type KeySet = { find: JWTVerifyGetKey; fetchedAt: number };

/** Throws invalid_request for a check that cannot be stored or sent: its key server, issuer or audience. */
export function prepareJwtCheck(egress: Pick<Egress, 'check'>, { parameters }: Pick<JwtGuardrailCheck, 'parameters'>) {
  egress.check(new URL(parameters.jwksUri));
  const missing = (['issuer', 'audience'] as const).find((name) => parameters[name] === undefined);
  if (missing === undefined) return;
  const message = `A jwt check needs '${missing}': the ${missing === 'issuer' ? 'iss' : 'aud'} claim that tokens must have, or a list of allowed values. Without it, any token from this key server would pass.`;
  throw new GatewayError('invalid_request', 'missing_required_parameter', message, { param: missing });
}

/** Keys are cached per workspace. Otherwise the time of an answer would show whether others use the same key server. */
export function createJwtCheck({ egress, clock }: { egress: Egress; clock: Clock }): JwtCheck {
  const known = new LRUCache<string, KeySet>({ max: setsMax });
  const underWay = new Map<string, Promise<KeySet>>();

  /** One fetch serves all calls that wait for it, so no caller's signal ends it. */
  const fetchSet = (uri: string, workspaceId: string): Promise<KeySet> => {
    const key = `${workspaceId} ${uri}`;
    const running = underWay.get(key);
    if (running !== undefined) return running;
    const fetching = readKeys(egress, uri, workspaceId).then((find) => {
      const set = { find, fetchedAt: clock.now() };
      known.set(key, set);
      return set;
    });
    underWay.set(key, fetching);
    const end = (): void => void underWay.delete(key);
    fetching.then(end, end);
    return fetching;
  };

  const verify = async (token: string, { parameters }: JwtGuardrailCheck, workspaceId: string): Promise<void> => {
    const { jwksUri, cacheMaxAge, clockTolerance, maxTokenAge, algorithms } = parameters;
    const { issuer, audience } = parameters;
    const claims = { ...(issuer === undefined ? {} : { issuer }), ...(audience === undefined ? {} : { audience }) };
    const options = { ...claims, algorithms, clockTolerance, maxTokenAge, currentDate: new Date(clock.now()) };
    const kept = known.get(`${workspaceId} ${jwksUri}`);
    const isFresh = kept !== undefined && clock.now() - kept.fetchedAt < cacheMaxAge * 1_000;
    const set = isFresh ? kept : await fetchSet(jwksUri, workspaceId);
    try {
      await jwtVerify(token, set.find, options);
    } catch (error) {
      if (!(error instanceof errors.JWKSNoMatchingKey) || clock.now() - set.fetchedAt < refetchMs) throw error;
      await jwtVerify(token, (await fetchSet(jwksUri, workspaceId)).find, options);
    }
  };

  return async (check, { headers, workspaceId, signal }) => {
    const { headerKey, not } = check.parameters;
    const verdict = (isGood: boolean, explanation: string): Finding => ({
      verdict: isGood !== not,
      data: { not, explanation },
    });
    const token = headers[headerKey.toLowerCase()]?.replace(/^bearer +/i, '').trim() ?? '';
    if (token === '') return verdict(false, `The call has no header '${headerKey}' with a token.`);
    if (token.length > tokenLengthMax) return verdict(false, `The token is longer than ${tokenLengthMax} characters.`);
    try {
      await orLeft(verify(token, check, workspaceId), signal);
      return verdict(true, 'The token is valid.');
    } catch (error) {
      if (signal.aborted) throw error;
      // The token could not be checked if the key server does not answer, so the check has failed, whatever the value
      // of `not`.
      if (error instanceof GatewayError) return { verdict: false, data: { not, explanation: error.message } };
      if (error instanceof errors.JOSEError) return verdict(false, explain(error));
      throw error;
    }
  };
}

async function orLeft(work: Promise<void>, signal: AbortSignal): Promise<void> {
  const { promise, reject } = Promise.withResolvers<never>();
  const left = (): void => reject(signal.reason as Error);
  signal.addEventListener('abort', left, { once: true });
  try {
    signal.throwIfAborted();
    await Promise.race([work, promise]);
  } finally {
    work.catch(() => {}); // There might not be a caller waiting any more.
    signal.removeEventListener('abort', left);
  }
}

async function readKeys(egress: Egress, uri: string, workspaceId: string): Promise<JWTVerifyGetKey> {
  const set = await fetchKeySet({ egress }, uri, workspaceId);
  try {
    return createLocalJWKSet(set);
  } catch (cause) {
    const message = 'The key server did not return a JSON Web Key Set.';
    throw new GatewayError('provider_failed', 'jwks_unusable', message, { cause });
  }
}

/** The message never contains a part of the token. */
function explain(error: errors.JOSEError): string {
  if (error instanceof errors.JWTExpired) return 'The token has expired, or is older than maxTokenAge.';
  if (error instanceof errors.JWTClaimValidationFailed) {
    return `The claim '${error.claim.slice(0, 50)}' of the token is missing or wrong.`;
  }
  if (error instanceof errors.JWKSNoMatchingKey)
    return 'The token was signed with a key that the key server does not have.';
  if (error instanceof errors.JOSEAlgNotAllowed) return 'The algorithm of the token is not allowed.';
  if (error instanceof errors.JWSSignatureVerificationFailed) return 'The signature of the token is wrong.';
  return 'The header does not contain a readable token.';
}
