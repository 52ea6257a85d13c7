import { z } from 'zod';
import { byteSize, duration, wholeNumber } from '#libs/kernel/read-env.ts';
import { parseNetworks } from '#libs/http/client-address.ts';
import type { CorsOrigins } from '#libs/http/cors.ts';
import { platformFields } from '../platform/config.ts';

/** Addresses and networks, separated by commas. */
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

// URL does not return the origins of other schemes (`tauri://localhost`, browser extensions).
const isOrigin = (text: string): boolean =>
  /^[a-z][a-z0-9+.-]*:\/\/[^\s/?#]+$/.test(text) && (!/^https?:/.test(text) || URL.parse(text)?.origin === text);

/** `https://app.example,http://localhost:3000`, in the form in which browsers send `Origin`; or `*`. */
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
   * A separate port for /metrics and the details of /health/ready. PORT then has no /metrics, and its readiness is only a
   * status. Absent: PORT serves everything. 0 picks a free port.
   */
  SLUICE_OPERATIONS_PORT: z.coerce.number().int().min(0).max(65_535).optional(),
  /** Absent: HOST. */
  SLUICE_OPERATIONS_HOST: z.string().optional(),
  /** An admin key that is valid from the first start; npm start generates one. Without any key nobody can call the API. */
  SLUICE_BOOTSTRAP_KEY: z.string().optional(),
  /** Keeps a virtual key `simulator` that points to this address; set by npm start and docker-compose. */
  SLUICE_SIMULATOR_URL: z.url({ protocol: /^https?$/ }).optional(),
  /** The JSON body of a live request: a conversation with images. */
  SLUICE_BODY_MAX: byteSize('10MiB', { minBytes: 1_024, maxBytes: 1_073_741_824 }),
  /**
   * How far a form is read to find its part `model`, if nothing else says where it goes. Some SDKs send the file first, and
   * OpenAI accepts audio of 25 MB.
   */
  SLUICE_FORM_READ_MAX: byteSize('32MiB', { minBytes: 1_024, maxBytes: 1_073_741_824 }),
  /** An uploaded file. OpenAI allows 512 MB; here uploads are streamed, so larger ones cost no memory. */
  SLUICE_UPLOAD_MAX: byteSize('4GiB', { minBytes: 1_024, maxBytes: 1_099_511_627_776 }),
  /** All files of one workspace. High because it may be the only one; with several, set it below the size of the disk. */
  SLUICE_STORED_MAX: byteSize('1024GiB', { minBytes: 1_048_576, maxBytes: Number.MAX_SAFE_INTEGER }),
  /**
   * The lowest rate at which a form must arrive, in bytes per second over half a minute: files, and relayed audio and images. A
   * JSON body has 30 s in total.
   */
  SLUICE_UPLOAD_RATE_MIN: byteSize('1KiB', { minBytes: 0, maxBytes: 1_048_576 }),
  /** A client that reads no 256 KiB of its answer, or not its rest, for this long is disconnected: the answer holds memory. */
  SLUICE_CLIENT_STALL_TIMEOUT: duration('60s', { minMs: 100, maxMs: 3_600_000 }),
  /** Web pages of these origins may call the API; `*` allows all. None by default: everyone can read the key in a page. */
  SLUICE_CORS_ORIGINS: corsOrigins().optional(),
  /**
   * Addresses and networks of proxies in front of the API, separated by commas. Only their entries in X-Forwarded-For are
   * trusted. None by default, because any client can send that header with someone else's address.
   */
  SLUICE_TRUSTED_PROXIES: networks(),
  /**
   * How many requests with a wrong key an address may send per minute before they get 429 without being checked; valid keys
   * still work. A person mistypes a few times; a script with a revoked key calls every second. 0: no limit.
   */
  SLUICE_WRONG_KEYS_PER_MINUTE: wholeNumber(60, { min: 0, max: 1_000_000 }),
  /**
   * How long new requests are still served after SIGTERM, while /health/ready is already 503: long enough for a proxy to
   * notice. That is three probes at the usual interval of HAProxy or Traefik, and one of Kubernetes.
   */
  SLUICE_STOP_DELAY: duration('15s', { minMs: 0, maxMs: 600_000 }),
  /** How long running requests may take to finish after that. */
  SLUICE_STOP_DEADLINE: duration('25s', { minMs: 100, maxMs: 3_600_000 }),
});
export type ApiConfig = z.output<typeof ApiConfig>;
