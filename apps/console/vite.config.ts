import react from '@vitejs/plugin-react';
import { defineConfig } from 'vite';

// Whatever it is where the console is built: React has a slow and large form for development.
process.env['NODE_ENV'] = 'production';

// The API serves what is built here at /console, with a policy that allows no inline scripts or styles.
export default defineConfig({
  root: import.meta.dirname,
  base: '/console/',
  // A proxy can serve the API below a path. The API makes the links of the page relative.
  experimental: { renderBuiltUrl: (_file, { hostType }) => (hostType === 'html' ? undefined : { relative: true }) },
  plugins: [react()],
  build: {
    outDir: 'dist',
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: 'es2023',
  },
  server: { proxy: { '/v1': 'http://127.0.0.1:8787', '/openapi.json': 'http://127.0.0.1:8787' } },
});
