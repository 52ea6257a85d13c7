import { createHmac, timingSafeEqual } from 'node:crypto';
import type { Clock } from '#libs/kernel/clock.ts';
import { hashText } from '#apps/simulator/model/hash.ts';
import { Refusal, type Received, type WireFormat } from '#apps/simulator/wire/wire-format.ts';
import { openai } from '#apps/simulator/wire/openai/openai.ts';

// Tokens only prove that this program issued them. They can be forged, which is harmless here.
const prefix = 'ya29.simulator';
const lifeDefaultSeconds = 3_600;
const jwtLifeMaxSeconds = 3_600;
const skewSeconds = 300;
const grantType = 'urn:ietf:params:oauth:grant-type:jwt-bearer';

/** POST /token, Google's OAuth server: a JWT signed with a service account's key is exchanged for an access token. */
export function createTokenServer({ clock }: { clock: Clock }): WireFormat {
  return {
    ...openai,
    find(method, path) {
      if (path !== '/token') return undefined;
      if (method !== 'POST') return { name: 'POST /token', allow: 'POST' };
      return {
        name: 'POST /token',
        reads: 'anything',
        call: (received) => {
          const { issuer, hash } = readGrant(received, clock);
          return {
            // A fault can be named before the @ of the service account's address.
            model: issuer.split('@')[0] ?? '',
            hash,
            user: undefined,
            stream: false,
            frames: () => [],
            body: () => JSON.stringify(grantOf(issuer, clock)),
          };
        },
      };
    },
    credential: () => undefined,
    errorBody: ({ message, code, status }) =>
      JSON.stringify({
        error: code ?? (status >= 500 ? 'internal_failure' : 'invalid_request'),
        error_description: message,
      }),
    headers: () => [],
  };
}

/** Whether a token that this server issued is still valid; undefined for other tokens. */
export function isTokenGood(token: string, clock: Clock): boolean | undefined {
  if (!token.startsWith(`${prefix}.`)) return undefined;
  const [, , expiresAt = '', mark = ''] = token.split('.');
  const expected = markOf(expiresAt);
  if (mark.length !== expected.length || !timingSafeEqual(Buffer.from(mark), Buffer.from(expected))) return false;
  return Number(expiresAt) * 1_000 > clock.now();
}

/** `token-2s` in the service account's address creates tokens that are valid for two seconds. */
function grantOf(issuer: string, clock: Clock) {
  const expiresIn = Number(/\btoken-(\d{1,5})s\b/.exec(issuer)?.[1] ?? lifeDefaultSeconds);
  const expiresAt = String(Math.floor(clock.now() / 1_000) + expiresIn);
  return { access_token: `${prefix}.${expiresAt}.${markOf(expiresAt)}`, expires_in: expiresIn, token_type: 'Bearer' };
}

function markOf(expiresAt: string): string {
  return createHmac('sha256', 'simulator').update(expiresAt).digest('base64url').replaceAll(/[-_]/g, '0');
}

function readGrant({ headers, bytes }: Received, clock: Clock): { issuer: string; hash: number } {
  if (!/^application\/x-www-form-urlencoded\b/.test(headers['content-type'] ?? '')) {
    deny('invalid_request', 'Content-Type must be application/x-www-form-urlencoded.');
  }
  const form = new URLSearchParams(Buffer.from(bytes).toString());
  if (form.get('grant_type') !== grantType)
    deny('unsupported_grant_type', `Invalid grant_type: ${form.get('grant_type') ?? ''}`);
  const assertion = form.get('assertion') ?? '';
  const [head = '', claims = '', signature = '', ...rest] = assertion.split('.');
  const { alg, typ } = parsePart(head);
  if (rest.length > 0 || alg !== 'RS256' || (typ !== undefined && typ !== 'JWT')) {
    deny('invalid_grant', 'Invalid JWT: expected three parts, of which the header says RS256 and JWT.');
  }
  if (Buffer.from(signature, 'base64url').length < 256) deny('invalid_grant', 'Invalid JWT Signature.');
  const { iss, scope, aud, iat, exp } = parsePart(claims);
  if (typeof iss !== 'string' || !iss.includes('@'))
    deny('invalid_grant', 'Invalid JWT: iss must be the address of a service account.');
  if (typeof scope !== 'string' || scope === '')
    deny('invalid_scope', 'Invalid OAuth scope or ID token audience provided.');
  if (typeof aud !== 'string' || !/^https?:\/\/.+\/token$/.test(aud))
    deny('invalid_grant', 'Invalid JWT: Failed audience check.');
  const now = clock.now() / 1_000;
  const timely =
    typeof iat === 'number' &&
    typeof exp === 'number' &&
    iat <= now + skewSeconds &&
    exp > now &&
    exp - iat <= jwtLifeMaxSeconds;
  if (!timely) {
    deny(
      'invalid_grant',
      'Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe. Check your iat and exp values in the JWT claim.',
    );
  }
  return { issuer: iss, hash: hashText(iss) };
}

function parsePart(part: string): Record<string, unknown> {
  try {
    return JSON.parse(Buffer.from(part, 'base64url').toString()) as Record<string, unknown>;
  } catch {
    return deny('invalid_grant', 'Invalid JWT: a part is not JSON in base64url.');
  }
}

function deny(code: string, message: string): never {
  throw new Refusal({ status: 400, message, code });
}
