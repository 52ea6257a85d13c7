import { hash } from 'node:crypto';
import { errors, jwtVerify, type JWTPayload } from 'jose';
import { LRUCache } from 'lru-cache';
import type { Caller } from '#libs/http/caller.ts';
import type { Clock } from '#libs/kernel/clock.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import type { SigningKeys } from './signing-keys.ts';

/** The signer of tokens, their audience, and the claims that are read. */
export type TokenSettings = {
  issuer: string;
  /** The token has to contain one of them. */
  audiences: readonly string[];
  /** How far the clocks of the issuer and the database can differ. */
  toleranceMs: number;
  claims: Readonly<Record<'user' | 'workspace' | 'role' | 'scopes' | 'email', string>>;
  /** Whether users are found by an address without the claim `email_verified`, for issuers that verify all of them. */
  trustsUnmarkedEmail: boolean;
};

/** The data of a token about its user. */
export type TokenIdentity = {
  readonly user: string;
  readonly workspace: string | null;
  /** Also null for an address that the issuer has not verified. */
  readonly email: string | null;
  readonly roles: readonly string[] | null;
  readonly scopes: ReadonlySet<string> | null;
};

type Deps = {
  settings: TokenSettings;
  keys: Pick<SigningKeys, 'find' | 'generation'>;
  clock: Clock;
  /**
   * Returns the caller of a token, according to the people known now. Throws forbidden for an unknown person and for a
   * user without access to the workspace. Called again when `accessVersion` has changed.
   */
  getCaller: (identity: TokenIdentity) => Caller;
  accessVersion: () => number;
  /** Called once for a token whose user `getCaller` refuses. It can create the user. */
  welcome?: (identity: TokenIdentity) => Promise<void>;
};

export type TokenSignIn = {
  /**
   * Returns the caller of a token that was verified before and is still valid; null for one that has to be verified.
   * Throws the errors of `getCaller`.
   */
  find(token: string): Caller | null;
  /**
   * Throws unauthenticated for an invalid token, and `unavailable` when that cannot be determined; otherwise like
   * `find`.
   */
  verify(token: string): Promise<Caller>;
};

/**
 * Fixed, and only asymmetric algorithms. A token that could choose `none`, or a shared secret, could be signed by
 * anyone who has the public keys (RFC 8725 3.1).
 */
const algorithms = ['RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512', 'ES256', 'ES384', 'ES512', 'EdDSA'];
const tokenLengthMax = 16_384;
/** Verifying costs 50 to 150 µs. Enough for all users of a company. */
const cachedMax = 10_000;
/** What is cached of a token is not larger than the token. */
const cachedCharactersMax = 8 * 1_048_576;

/** Three parts of base64url, the first of them JSON. An API key never looks like it, because it contains no dots. */
export const looksLikeToken = (text: string): boolean => text.startsWith('eyJ') && text.includes('.');

const digestOf = (token: string): string => hash('sha256', token, 'base64');

type Verified = {
  readonly identity: TokenIdentity;
  readonly expiresAtMs: number;
  readonly generation: number;
  caller: Caller | null;
  /** The version that `caller` was computed from. */
  accessVersion: number;
};

/**
 * Signs users in by JWTs. What a verified token says is cached under its digest until it expires or the keys change, so
 * that a call costs one hash, and no usable token stays in memory.
 */
export function createTokenSignIn({ settings, keys, clock, getCaller, accessVersion, welcome }: Deps): TokenSignIn {
  const { issuer, audiences, toleranceMs } = settings;
  const verified = new LRUCache<string, Verified>({
    max: cachedMax,
    maxSize: cachedCharactersMax,
  });
  const keep = (token: string, entry: Verified): void => {
    verified.set(digestOf(token), entry, { size: token.length });
  };

  /** Users and their rights change while their tokens do not. */
  const callerNow = (entry: Verified): Caller => {
    const version = accessVersion();
    if (entry.caller !== null && entry.accessVersion === version) return entry.caller;
    entry.caller = null;
    entry.caller = getCaller(entry.identity);
    entry.accessVersion = version;
    return entry.caller;
  };

  const read = async (token: string): Promise<Verified> => {
    if (token.length > tokenLengthMax) throw refused(`It is longer than ${tokenLengthMax} characters.`);
    // Read before the key is looked up, because keys that arrive meanwhile start another generation.
    const generation = keys.generation();
    try {
      const { payload } = await jwtVerify(token, keys.find, {
        algorithms,
        issuer,
        audience: [...audiences],
        clockTolerance: toleranceMs / 1_000,
        currentDate: new Date(clock.now()),
        requiredClaims: ['exp'],
      });
      const expiresAtMs = (payload.exp ?? 0) * 1_000 + toleranceMs;
      return { identity: identityOf(payload, settings), expiresAtMs, generation, caller: null, accessVersion: -1 };
    } catch (error) {
      if (error instanceof GatewayError) throw error;
      // A library's message can quote the token, which an unknown client wrote.
      throw refused(explain(error), error);
    }
  };

  return {
    find(token) {
      const digest = digestOf(token);
      const entry = verified.get(digest);
      if (entry === undefined) return null;
      if (entry.expiresAtMs > clock.now() && entry.generation === keys.generation()) return callerNow(entry);
      verified.delete(digest);
      return null;
    },
    async verify(token) {
      const entry = await read(token);
      keep(token, entry);
      try {
        return callerNow(entry);
      } catch (error) {
        if (welcome === undefined || !(error instanceof GatewayError) || error.code !== 'unknown_user') throw error;
      }
      // If this fails, the next call with the token tries again.
      verified.delete(digestOf(token));
      await welcome(entry.identity);
      keep(token, entry);
      return callerNow(entry);
    },
  };
}

function identityOf(
  payload: JWTPayload,
  { claims: names, trustsUnmarkedEmail }: Pick<TokenSettings, 'claims' | 'trustsUnmarkedEmail'>,
): TokenIdentity {
  const user = asText(claimOf(payload, names.user));
  if (user === null) throw refused(`It has no claim '${names.user}', which identifies the user.`);
  // Some issuers send texts. Without the claim, an address can only be used for a new user who is found by something
  // else.
  const verified = payload['email_verified'];
  const isByEmail = names.user === names.email;
  const isUnmarked = verified === undefined && (trustsUnmarkedEmail || !isByEmail);
  const isUnverified = verified !== true && verified !== 'true' && !isUnmarked;
  if (isUnverified && isByEmail) throw refused(verified === undefined ? unmarkedEmail : unverifiedEmail);
  const scopes = wordsOf(claimOf(payload, names.scopes));
  return {
    user,
    workspace: asText(claimOf(payload, names.workspace)),
    email: isUnverified ? null : asText(claimOf(payload, names.email)),
    roles: wordsOf(claimOf(payload, names.role)),
    scopes: scopes && new Set(scopes),
  };
}

const unverifiedEmail = "Its e-mail address is not verified: the claim 'email_verified' must be true.";
const unmarkedEmail =
  "It has no claim 'email_verified', which must be true. If the issuer verifies all addresses, set SLUICE_JWT_TRUST_EMAIL=true.";

/**
 * Returns a claim by its name, which may have dots (`https://example.com/role`), or by its path (`realm_access.roles`).
 */
function claimOf(payload: JWTPayload, name: string): unknown {
  if (Object.hasOwn(payload, name)) return payload[name];
  let value: unknown = payload;
  for (const member of name.split('.')) {
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, member)) return undefined;
    value = (value as Record<string, unknown>)[member];
  }
  return value;
}

const asText = (value: unknown): string | null =>
  typeof value === 'string' && value !== '' && value.length <= 320 && !value.includes('\0') ? value : null;

/** A list, or words separated by spaces or commas, as in OAuth's `scope`; null if there is no such claim. */
function wordsOf(value: unknown): string[] | null {
  if (value === undefined || value === null) return null;
  const list: unknown[] = typeof value === 'string' ? value.split(/[\s,]+/) : Array.isArray(value) ? value : [];
  return list.filter((word): word is string => typeof word === 'string' && word !== '');
}

const refused = (why: string, cause?: unknown): GatewayError =>
  new GatewayError('unauthenticated', 'invalid_token', `The token was rejected. ${why}`, { cause });

/** The message never contains a part of the token. */
function explain(error: unknown): string {
  if (error instanceof errors.JWTExpired) return 'It has expired.';
  if (error instanceof errors.JWTClaimValidationFailed) {
    const claim = error.claim.slice(0, 50);
    return error.claim === 'nbf'
      ? 'It is not valid yet.'
      : `Its claim '${claim}' is missing or is not the expected one.`;
  }
  if (error instanceof errors.JWKSNoMatchingKey) return 'It was signed with a key that its issuer does not publish.';
  if (error instanceof errors.JOSEAlgNotAllowed) return `Its algorithm must be one of ${algorithms.join(', ')}.`;
  if (error instanceof errors.JWSSignatureVerificationFailed) return 'Its signature is invalid.';
  return 'It is not a readable signed JWT.';
}
