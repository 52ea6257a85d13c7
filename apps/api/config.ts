import { z } from 'zod';
import { byteSize, duration, wholeNumber } from '#libs/kernel/read-env.ts';
import { parseNetworks } from '#libs/http/client-address.ts';
import type { CorsOrigins } from '#libs/http/cors.ts';
import { platformFields } from '../platform/config.ts';

/** Addresses and networks by commas. */
const networks = () =>
  z
    .string()
    .default('')
    .transform((text, context) => {
      try {
        return parseNetworks(text);
      } catch (error) {
        if (!(error instanceof RangeError)) throw error;
        context.addIssue(error.message);
        return z.NEVER;
      }
    });

// Apps of other schemes (`tauri://localhost`, browser extensions) have origins that URL does not tell.
const isOrigin = (text: string): boolean =>
  /^[a-z][a-z0-9+.-]*:\/\/[^\s/?#]+$/.test(text) && (!/^https?:/.test(text) || URL.parse(text)?.origin === text);

/** `https://app.example,http://localhost:3000`, as browsers write them in `Origin`; or `*`. */
const corsOrigins = () =>
  z.string().transform((text, context): CorsOrigins => {
    if (text.trim() === '*') return 'any';
    const origins = text.split(',').map((origin) => origin.trim());
    if (origins.every(isOrigin)) return new Set(origins);
    context.addIssue('must be * or a list of origins like https://app.example,http://localhost:3000, without paths');
    return z.NEVER;
  });

/** Configuration of the API process. Read once, in main.ts. */
export const ApiConfig = z.object({
  ...platformFields,
  PORT: wholeNumber(8787, { min: 0, max: 65_535 }),
  HOST: z.string().default('127.0.0.1'),
  /**
   * A port of its own for /metrics and for what /health/ready says of each part; PORT then has no /metrics, and readiness
   * there is a status alone. Absent: all of it is at PORT; 0 picks a free port.
   */
  SLUICE_OPERATIONS_PORT: z.coerce.number().int().min(0).max(65_535).optional(),
  /** Absent: HOST. */
  SLUICE_OPERATIONS_HOST: z.string().optional(),
  /** An admin key to have from the first moment on; npm start makes one. Without any key nobody can call. */
  SLUICE_BOOTSTRAP_KEY: z.string().optional(),
  /** Keeps a virtual key `simulator` that leads there; set by npm start and docker-compose. */
  SLUICE_SIMULATOR_URL: z.url({ protocol: /^https?$/ }).optional(),
  /** A live request's JSON body: a conversation with images. */
  SLUICE_BODY_MAX: byteSize('10MiB', { minBytes: 1_024, maxBytes: 1_073_741_824 }),
  /**
   * How far a form is read for its part `model` when nothing else says where it goes; some SDKs send the file first. OpenAI
   * takes audio of 25 MB.
   */
  SLUICE_FORM_READ_MAX: byteSize('32MiB', { minBytes: 1_024, maxBytes: 1_073_741_824 }),
  /** An uploaded file; OpenAI allows 512 MB, and here it is streamed, so more costs no memory. */
  SLUICE_UPLOAD_MAX: byteSize('4GiB', { minBytes: 1_024, maxBytes: 1_099_511_627_776 }),
  /** All files of one workspace. Generous, as one workspace may be all there is; with several, less than the disk. */
  SLUICE_STORED_MAX: byteSize('1024GiB', { minBytes: 1_048_576, maxBytes: Number.MAX_SAFE_INTEGER }),
  /**
   * The slowest body of a form, in bytes a second over half a minute: files, and audio and images that are forwarded. A JSON
   * body has 30 s as a whole.
   */
  SLUICE_UPLOAD_RATE_MIN: byteSize('1KiB', { minBytes: 0, maxBytes: 1_048_576 }),
  /** A client that takes no 256 KiB of its answer, or not the rest of it, for so long is cut off: it holds memory. */
  SLUICE_CLIENT_STALL_TIMEOUT: duration('60s', { minMs: 100, maxMs: 3_600_000 }),
  /** Web pages of these origins may call the API, `*` for any. None by default: a key in a page is everybody's key. */
  SLUICE_CORS_ORIGINS: corsOrigins().optional(),
  /**
   * Addresses and networks of proxies in front of the API, by commas: only what they say in X-Forwarded-For is believed.
   * None by default: anybody can write that header, and with it another's address.
   */
  SLUICE_TRUSTED_PROXIES: networks(),
  /**
   * How many requests with a wrong key an address may make in a minute, before they are answered with 429 unread; right
   * keys go on. A person mistypes a few times; a script with a revoked key comes once a second. 0: any number.
   */
  SLUICE_WRONG_KEYS_PER_MINUTE: wholeNumber(60, { min: 0, max: 1_000_000 }),
  /**
   * How long new requests are still served after SIGTERM, while /health/ready is already 503: as long as whoever routes
   * requests here takes to see it. Three probes of HAProxy's or Traefik's usual intervals, one of Kubernetes'.
   */
  SLUICE_STOP_DELAY: duration('15s', { minMs: 0, maxMs: 600_000 }),
  /** How long requests in flight may finish after that. */
  SLUICE_STOP_DEADLINE: duration('25s', { minMs: 100, maxMs: 3_600_000 }),
});
export type ApiConfig = z.output<typeof ApiConfig>;
